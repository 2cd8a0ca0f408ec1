# SPDX-License-Identifier: Apache-2.0
"""How a field of a VM is declared: once, in `vm_request`. What follows from a declaration is derived from it.

That is its option and help, its key in a spec file and in host.yaml's `defaults:`, its rule and JSON Schema, its
default, the value in a `VmRequest`, how that is compared with a VM, recorded and shown, the arguments of the library's
calls, and Ansible's option. CONTRIBUTING.md, "Add a field of a VM", says what else a field needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, ParamSpec, dataclass_transform

from vgpuctl.config.shape import Key, Rule
from vgpuctl.value import EMPTY_MAPPING, Value, replace

JsonSchema = dict[str, Any]


def as_is(value: Any) -> Any:
    """Return the value."""
    return value


class VmField(Value):
    """What is declared about a field of a VM.

    Spelling: `rule` turns what people write into the canonical spelling, or raises ValueError; `schema` is that in JSON
    Schema; `default`: the built-in value in that spelling. `name`: in a file and in JSON, if it is not `attribute`, the
    name in a `VmRequest`. `option`: on the command line, if it is not the name with hyphens.
    `optional_value`: the value of an option that is given without one. `change_help`: the help where the option changes
    a VM that exists, if it is another. `argument`: the type of the library's argument, if it does not follow from the
    schema; `change_argument`: the same where the call changes a VM that exists.

    Value: `parse` turns the canonical spelling into the value in a `VmRequest`, if that is another; `empty` is the
    value if there is none. `text` turns the value into what JSON and the record have, and what is compared with the VM.
    `shown` turns it into what `sources` shows of a new VM; without it the field is not shown, nor is an empty value.

    Life: `changes` says what can change it: "new" nothing; "off" set-vm and ensure-vm while the VM is off; "any" these
    at any time; "placing" set-vm, only together with a new place. `changed_by`: the command that changes it otherwise.
    `restricts_placement`: it says which GPUs are allowed, or how to choose. `recorded`: the VM's record keeps it,
    "always", or only if it is "given", which is another value than the default; the domain shows the others.
    `compared` False: a difference from the VM never counts. `in_defaults`: host.yaml's `defaults:` may have it.
    """

    rule: Rule
    schema: JsonSchema
    help: str
    default: object
    name: str = ""
    attribute: str = ""
    option: str = ""
    example: str = ""
    metavar: str = ""
    repeatable: bool = False
    optional_value: str = ""
    change_help: str = ""
    argument: str = ""
    change_argument: str = ""
    parse: Callable[[Any], Any] | None = None
    text: Callable[[Any], Any] | None = None
    shown: Callable[[Any], Any] | None = None
    empty: Any = None
    changes: Literal["new", "placing", "off", "any"] = "new"
    changed_by: str = ""
    restricts_placement: bool = False
    recorded: Literal["", "given", "always"] = ""
    compared: bool = True
    in_defaults: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        """The only words that it takes; empty if there are more."""
        return tuple(self.schema.get("enum", ()))

    @property
    def is_flag(self) -> bool:
        """Whether its option takes no value."""
        return bool(self.schema.get("type") == "boolean")

    @property
    def is_number(self) -> bool:
        """Whether its value is a whole number."""
        return bool(self.schema.get("type") == "integer")

    @property
    def is_path(self) -> bool:
        """Whether its value is one path, which an option may give relative to the working directory."""
        return self.metavar == "PATH"

    @property
    def argument_type(self) -> str:
        """The type of the library's argument; `Texts` is a text or several."""
        if self.argument:
            return self.argument
        if self.repeatable:
            return "Texts"
        return "bool | None" if self.is_flag else "int | str | None" if self.is_number else "str | None"

    @property
    def default_text(self) -> str:
        """The default as people write it; empty if there is none, or a flag is simply not set."""
        if self.default is None or self.default is False:
            return ""
        return ", ".join(map(str, self.default)) if isinstance(self.default, tuple) else str(self.default)

    def value(self, canonical: object) -> Any:
        """Return what a `VmRequest` has for a value in the canonical spelling, or for none."""
        if canonical is None:
            return () if self.repeatable and self.empty is None else self.empty
        return canonical if self.parse is None else self.parse(canonical)

    def text_in(self, request: DeclaredFields) -> Any:
        """Return the value of a request as it is compared, recorded and put into JSON."""
        value = getattr(request, self.attribute)
        return value if self.text is None else self.text(value)

    def is_given(self, request: DeclaredFields) -> bool:
        """Return whether a request has another value than the default."""
        return bool(getattr(request, self.attribute) != self.value(self.default))

    def key(self) -> Key:
        """Return its key in a file; the help has the example."""
        text = f"{self.help}; for example {self.example}" if self.example else self.help
        return Key(self.name, self.rule, text, self.schema)


Facts = ParamSpec("Facts")


def _as_specifier(declare: Callable[Facts, VmField]) -> Callable[Facts, Any]:
    """Return the class as what PEP 681 calls a field specifier: its value stands for that of the field."""
    return declare


vm_field = _as_specifier(VmField)


@dataclass_transform(frozen_default=True, field_specifiers=(vm_field,))
class DeclaredFields(Value):
    """Base of a class whose fields are declared with `vm_field`; `declared` has the declarations by people's name."""

    declared: ClassVar[Mapping[str, VmField]] = EMPTY_MAPPING

    def __init_subclass__(cls) -> None:
        declared: dict[str, VmField] = {}
        for attribute in cls.__annotations__:
            field = cls.__dict__.get(attribute)
            if isinstance(field, VmField):
                name = field.name or attribute
                option = field.option or f"--{name.replace('_', '-')}"
                declared[name] = replace(field, name=name, attribute=attribute, option=option)
                setattr(cls, attribute, field.value(field.default))
        cls.declared = declared
        super().__init_subclass__()


def pattern_schema(pattern: str) -> JsonSchema:
    """Return the schema of texts that match a pattern as a whole."""
    return {"pattern": f"^{pattern}$", "type": "string"}


def enum_schema(words: Iterable[str]) -> JsonSchema:
    """Return the schema of one of a few words."""
    return {"enum": list(words), "type": "string"}


def integer_schema(minimum: int, maximum: int) -> JsonSchema:
    """Return the schema of a whole number."""
    return {"maximum": maximum, "minimum": minimum, "type": "integer"}


def list_schema(item: JsonSchema) -> JsonSchema:
    """Return the schema of one value or a list of them."""
    return {"anyOf": [item, {"items": item, "type": "array"}]}


def nonempty_list_schema(items: JsonSchema) -> JsonSchema:
    """Return the schema of one value or a list of at least one."""
    return {"anyOf": [items, {"type": "array", "items": items, "minItems": 1}]}


def pairs_schema(pair: JsonSchema, mapping: JsonSchema) -> JsonSchema:
    """Return the schema of key=value pairs: as a mapping, one text or a list of texts."""
    return {"anyOf": [{**mapping, "type": "object"}, pair, {"items": pair, "type": "array"}]}
