# SPDX-License-Identifier: Apache-2.0
<#
.SYNOPSIS
vgpuctl-guest for Windows, experimental: nobody has run it on Windows yet. It says who is logged on in this VM and which NVIDIA driver runs, and carries out a few
requests of the host.

.DESCRIPTION
    powershell -ExecutionPolicy Bypass -File vgpuctl-guest.ps1 install    as an administrator: a scheduled task
    powershell -ExecutionPolicy Bypass -File vgpuctl-guest.ps1 run        what the task does
    powershell -ExecutionPolicy Bypass -File vgpuctl-guest.ps1 clean      before an image is made of this guest: removes
                                                                          tokens and old answer files
    powershell -ExecutionPolicy Bypass -File vgpuctl-guest.ps1 uninstall  removes the task and this program; a VM with
                                                                          guest_helper gets them again at its next start

It speaks through the virtio port org.vgpuctl.guest.0, which vgpuctl gives each VM; the virtio-serial driver (vioserial)
must be installed. One JSON object per line, at most 4 KiB. The host cannot run commands through it. It needs Windows
PowerShell 5.1, which Windows 10, 11 and Server have.
#>
param(
    [ValidateSet('run', 'install', 'uninstall', 'show', 'clean')]
    [string] $Action = 'run'
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

$Version = '2'
$PortPath = '\\.\Global\org.vgpuctl.guest.0'
$Program = Join-Path $env:ProgramFiles 'vgpuctl\vgpuctl-guest.ps1'
$TaskName = 'vgpuctl-guest'
$TokenDirectory = Join-Path $env:ProgramFiles 'NVIDIA Corporation\vGPU Licensing\ClientConfigToken'
$TokenName = 'client_configuration_token_vgpuctl.tok'
$MaxLineBytes = 4096
$MaxUsers = 32
$LookSeconds = 5
$ReportSeconds = 60
$script:TokenParts = @()
$script:TokenDigest = ''
$AccountMark = 'made by vgpuctl-guest'
$AccountPattern = '^[a-z_][a-z0-9_-]{0,19}\z'
$OnceFile = Join-Path (Split-Path $Program) 'one-time-password'  # without a password in it
$OnceMinutes = 60

Add-Type -TypeDefinition @'
using System;
using System.IO;
using System.Runtime.InteropServices;
using Microsoft.Win32.SafeHandles;

public static class VgpuctlPort
{
    [DllImport("kernel32.dll", CharSet = CharSet.Unicode, SetLastError = true)]
    private static extern SafeFileHandle CreateFile(
        string name, uint access, uint share, IntPtr security, uint creation, uint flags, IntPtr template);

    // .NET opens no devices by name.
    public static FileStream Open(string path)
    {
        const uint readAndWrite = 0xC0000000, openExisting = 3, overlapped = 0x40000000;
        SafeFileHandle handle = CreateFile(path, readAndWrite, 0, IntPtr.Zero, openExisting, overlapped, IntPtr.Zero);
        if (handle.IsInvalid)
        {
            throw new System.ComponentModel.Win32Exception(Marshal.GetLastWin32Error());
        }
        return new FileStream(handle, FileAccess.ReadWrite, 1, true);
    }
}
'@

# Run a program of Windows and return its lines. What it writes to stderr is no error by itself.
function Invoke-Program([string] $Name, [string[]] $Arguments) {
    $ErrorActionPreference = 'Continue'
    $lines = @(& "$env:SystemRoot\System32\$Name" @Arguments 2>$null | ForEach-Object { "$_" })
    return @{ status = $LASTEXITCODE; lines = $lines }
}

# ------------------------------------------------------------------- reports

# Who is logged on, as quser says; it says nothing, with an error, where nobody is. Its words are those of the system's
# language, so only their places count: the name has 21 characters, and a session without a name is disconnected.
function Get-LoggedOnUser {
    $result = Invoke-Program 'quser.exe' @()
    foreach ($line in ($result.lines | Select-Object -Skip 1 -First $MaxUsers)) {
        if ($line.Length -gt 22 -and $line.Substring(22) -match '^\s*(?:(\D\S*)\s+)?(\d+)\s+(\S+)\s+(\S+)\s') {
            $state = if ($Matches[1]) { 'active' } else { 'disconnected' }
            @{ user = $line.Substring(1, 21).Trim(); state = $state; idle_seconds = (ConvertFrom-IdleTime $Matches[4]) }
        }
    }
}

function ConvertFrom-IdleTime([string] $Text) {
    if ($Text -match '^(?:(\d+)\+)?(\d+):(\d+)$') {
        $days = if ($Matches[1]) { [int] $Matches[1] } else { 0 }
        return ($days * 24 + [int] $Matches[2]) * 3600 + [int] $Matches[3] * 60
    }
    if ($Text -match '^\d+$') { return [int] $Text * 60 }
    return 0
}

# NVIDIA's version is the last five digits of Windows': 32.0.15.7371 is 573.71.
function Get-NvidiaDriver {
    $cards = @(Get-CimInstance Win32_VideoController | Where-Object { $_.AdapterCompatibility -eq 'NVIDIA' })
    if ($cards.Count -eq 0 -or -not $cards[0].DriverVersion) { return $null }
    $digits = $cards[0].DriverVersion -replace '\D', ''
    if ($digits.Length -lt 5) { return $null }
    $last = $digits.Substring($digits.Length - 5)
    return '{0}.{1}' -f $last.Substring(0, 3), $last.Substring(3)
}

function Get-Report {
    return [ordered] @{
        type = 'report'; helper = $Version; users = @(Get-LoggedOnUser); driver = (Get-NvidiaDriver)
        host_driver = $null; host_branch = $null; mps = $false
    }
}

# ------------------------------------------------------------------ requests

function Invoke-Request($Request) {
    $answer = [ordered] @{ type = 'answer'; id = $Request.id; ok = $true }
    try {
        switch ($Request.verb) {
            'message' { Show-Message (Get-CleanText $Request.text) | Out-Null }
            'put-token' { Set-Token $Request | Out-Null }
            'allow-logon' { Set-AllowedUser $Request | Out-Null }
            'make-account' { New-Account $Request.user | Out-Null }
            'set-password' { Set-Password $Request | Out-Null }
            'shutdown-in' { Set-Shutdown $Request | Out-Null }
            default { throw "this helper, version $Version, has no such request" }
        }
    } catch {
        $answer.ok = $false
        $text = "$_"
        $answer.error = $text.Substring(0, [Math]::Min(500, $text.Length))
    }
    return $answer
}

function Get-CleanText($Text) {
    if (-not ($Text -is [string]) -or -not $Text.Trim()) { throw 'a text is missing' }
    $clean = $Text -replace '[\p{Cc}\p{Cf}"]', ' '
    return $clean.Substring(0, [Math]::Min(1000, $clean.Length))
}

function Show-Message([string] $Text) {
    if (@(Get-LoggedOnUser).Count -eq 0) { throw 'nobody is logged on' }
    $result = Invoke-Program 'msg.exe' @('*', '/TIME:600', $Text)
    if ($result.status -ne 0) { throw "msg.exe failed: exit status $($result.status)" }
}

# The parts of a license token; with the last one the token is replaced and NVIDIA's service restarted.
function Set-Token($Request) {
    $part = [int] $Request.part
    $parts = [int] $Request.parts
    if ($part -eq 1) { $script:TokenParts = @(); $script:TokenDigest = [string] $Request.sha256 }
    if ($part -ne $script:TokenParts.Count + 1 -or $Request.sha256 -ne $script:TokenDigest) {
        $script:TokenParts = @()
        throw "part $part of the token came in the wrong order"
    }
    $script:TokenParts += [string] $Request.data
    $token = $script:TokenParts -join ''
    if ($token.Length -gt 65536 -or $token -notmatch '^[A-Za-z0-9_.=+/-]+$') {
        $script:TokenParts = @()
        throw 'this is no license token'
    }
    if ($part -lt $parts) { return }
    $script:TokenParts = @()
    $hash = [Security.Cryptography.SHA256]::Create().ComputeHash([Text.Encoding]::ASCII.GetBytes($token))
    if ((($hash | ForEach-Object { $_.ToString('x2') }) -join '') -ne $script:TokenDigest) {
        throw 'the token has another sha256 than it should'
    }
    New-Item -ItemType Directory -Force -Path $TokenDirectory | Out-Null
    $path = Join-Path $TokenDirectory $TokenName
    New-Item -ItemType File -Force -Path "$path.new" | Out-Null
    $who = '*S-1-5-18:F', '*S-1-5-32-544:F'  # only the system and administrators may read it
    $result = Invoke-Program 'icacls.exe' (@("$path.new", '/inheritance:r', '/grant:r') + $who)
    if ($result.status -ne 0) { throw "icacls.exe failed: exit status $($result.status)" }
    [IO.File]::WriteAllText("$path.new", $token)
    Move-Item -Force "$path.new" $path
    Get-ChildItem -Path $TokenDirectory -Filter '*.tok' | Where-Object Name -ne $TokenName | Remove-Item -Force
    Restart-Service -Force -Name 'NVDisplay.ContainerLocalSystem'
}

# Only this user may log on remotely, or nobody; administrators may always.
function Set-AllowedUser($Request) {
    $has = $Request.PSObject.Properties
    $nobody = -not $has['user'] -and $has['nobody'] -and $Request.nobody -eq $true
    if (-not $nobody -and $null -eq $Request.user) {
        throw 'add the users to Remote Desktop Users by hand: who was there is not known'
    }
    $wanted = $null
    if (-not $nobody) {
        if (-not ($Request.user -is [string]) -or $Request.user -notmatch '^[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}$') {
            throw 'allow-logon needs the name of a user'
        }
        $account = New-Object Security.Principal.NTAccount $Request.user
        $wanted = $account.Translate([Security.Principal.SecurityIdentifier])
    }
    $group = 'S-1-5-32-555'  # Remote Desktop Users, in every language
    $members = @(Get-LocalGroupMember -SID $group)
    if ($null -ne $wanted -and -not ($members | Where-Object { $_.SID -eq $wanted })) {
        Add-LocalGroupMember -SID $group -Member $wanted.Value
    }
    $others = $members | Where-Object { $null -eq $wanted -or $_.SID -ne $wanted }
    $others | ForEach-Object { Remove-LocalGroupMember -SID $group -Member $_.SID.Value }
}

# Only this user may log on, with a local account that is made for him; its password is nobody's. An account of the
# image is refused: its rights, and who knows its password, are not known here.
function New-Account($User) {
    if (-not ($User -is [string]) -or $User -cnotmatch $AccountPattern) {
        throw 'make-account needs the name of an account: at most 20 of a to z, digits, _ and -'
    }
    $account = Get-LocalUser -Name $User -ErrorAction SilentlyContinue
    if ($null -eq $account) {
        New-LocalUser -Name $User -Description $AccountMark -Password (New-SecretPassword) -PasswordNeverExpires
        Add-LocalGroupMember -SID 'S-1-5-32-545' -Member $User  # Users
    } elseif ($account.Description -ne $AccountMark) {
        throw "this guest has an account $User of its own"
    }
    Set-AllowedUser ([pscustomobject] @{ user = $User })
}

# A password that nobody knows.
function New-SecretPassword {
    $bytes = New-Object byte[] 48
    $random = [Security.Cryptography.RandomNumberGenerator]::Create()
    $random.GetBytes($bytes)
    return ConvertTo-SecureString -AsPlainText -Force ('aA1-' + [Convert]::ToBase64String($bytes))
}

# A password that is good for one log-on, and for an hour. One that must be changed is of no use here: Remote Desktop
# with network level authentication refuses it, before the user could see the dialog that changes it.
function Set-Password($Request) {
    if (-not ($Request.password -is [string]) -or $Request.password -notmatch '^[A-Za-z0-9](-?[A-Za-z0-9]){11,63}\z') {
        throw 'set-password needs a password of 12 to 64 letters and digits'
    }
    $user = $Request.user
    $account = $null
    if ($user -is [string] -and $user -cmatch $AccountPattern) {
        $account = Get-LocalUser -Name $user -ErrorAction SilentlyContinue
    }
    if ($null -eq $account -or $account.Description -ne $AccountMark) {
        throw 'set-password needs the name of the account that make-account made'
    }
    New-Item -ItemType Directory -Force -Path (Split-Path $OnceFile) | Out-Null
    $state = @{ user = $user; active = (Test-Active $user); time = [DateTime]::UtcNow.Ticks }
    [IO.File]::WriteAllText($OnceFile, (ConvertTo-Json -InputObject $state -Compress))
    Set-LocalUser -Name $user -Password (ConvertTo-SecureString -AsPlainText -Force $Request.password)
}

function Test-Active([string] $User) {
    return @(Get-LoggedOnUser | Where-Object { $_.user -eq $User -and $_.state -eq 'active' }).Count -gt 0
}

# Replace a one-time password by one that nobody knows: after its log-on, or after an hour.
function Clear-OneTimePassword {
    if (-not (Test-Path $OnceFile)) { return }
    try {
        $state = ConvertFrom-Json ([IO.File]::ReadAllText($OnceFile))
        $minutes = ([DateTime]::UtcNow.Ticks - [long] $state.time) / [TimeSpan]::TicksPerMinute
        $isOver = $minutes -lt 0 -or $minutes -ge $OnceMinutes
        if ($isOver -or (-not $state.active -and (Test-Active $state.user))) {
            Set-LocalUser -Name $state.user -Password (New-SecretPassword)
            Remove-Item -Force -Path $OnceFile
        }
    } catch {
        Write-Verbose "$_"
    }
}

function Set-Shutdown($Request) {
    $cancelled = Invoke-Program 'shutdown.exe' @('/a')  # a second one is refused while one is pending
    if ($null -eq $Request.minutes) {
        $result = $cancelled
    } else {
        $seconds = [Math]::Max(0, [Math]::Min(1440, [int] $Request.minutes)) * 60
        $comment = @()
        if ($Request.text) {
            $text = Get-CleanText $Request.text
            $comment = @('/c', $text.Substring(0, [Math]::Min(500, $text.Length)))
        }
        $result = Invoke-Program 'shutdown.exe' (@('/s', '/t', "$seconds") + $comment)
    }
    if ($result.status -ne 0) { throw "shutdown.exe failed: exit status $($result.status)" }
}

# ------------------------------------------------------------------ the port

# Send a message; users who do not fit into a line are left out. While no host is connected, the port refuses it.
function Send-Message($Port, $Message) {
    $line = [Text.Encoding]::ASCII.GetBytes((ConvertTo-AsciiJson $Message) + "`n")
    while ($line.Length -gt $MaxLineBytes -and $Message.Contains('users') -and $Message.users.Count -gt 1) {
        $Message.users = @($Message.users | Select-Object -First ([int] ($Message.users.Count / 2)))
        $line = [Text.Encoding]::ASCII.GetBytes((ConvertTo-AsciiJson $Message) + "`n")
    }
    $write = $Port.WriteAsync($line, 0, $line.Length)
    if (-not $write.Wait(10000)) { throw 'the host does not read' }
}

# Windows PowerShell writes other characters as they are; the host takes ASCII.
function ConvertTo-AsciiJson($Message) {
    $json = ConvertTo-Json -InputObject $Message -Depth 4 -Compress
    return [regex]::Replace($json, '[^\x20-\x7e]', { param($m) '\u{0:x4}' -f [int] [char] $m.Value })
}

# Serve, and begin again after each error: while no host is connected, the port refuses to read and to write.
function Start-Helper {
    while ($true) {
        $port = $null
        try {
            $port = [VgpuctlPort]::Open($PortPath)
            Start-Serving $port
        } catch {
            Write-Verbose "$_"
        } finally {
            if ($null -ne $port) { $port.Dispose() }
        }
        Start-Sleep -Seconds 5
    }
}

function Start-Serving($port) {
    $buffer = New-Object byte[] $MaxLineBytes
    $rest = ''
    $sent = ''
    $sentTime = [DateTime]::MinValue
    $read = $null
    while ($true) {
        Clear-OneTimePassword
        $report = Get-Report
        $key = (@($report.users | ForEach-Object { $_.user + $_.state }) -join ' ') + $report.driver
        if ($key -ne $sent -or ([DateTime]::UtcNow - $sentTime).TotalSeconds -ge $ReportSeconds) {
            Send-Message $port $report
            $sent = $key
            $sentTime = [DateTime]::UtcNow
        }
        if ($null -eq $read) { $read = $port.ReadAsync($buffer, 0, $buffer.Length) }
        if (-not $read.Wait($LookSeconds * 1000)) { continue }
        $count = $read.Result
        $read = $null
        if ($count -eq 0) { Start-Sleep -Seconds 1; continue }
        $lines = @(($rest + [Text.Encoding]::UTF8.GetString($buffer, 0, $count)) -split "`n")
        $rest = $lines[-1]
        if ($rest.Length -gt $MaxLineBytes) { $rest = '' }
        foreach ($line in ($lines | Select-Object -SkipLast 1)) {
            try { $request = ConvertFrom-Json $line } catch { continue }
            if ($null -eq $request -or -not $request.PSObject.Properties['verb']) { continue }
            if ($request.verb -eq 'report') { $sentTime = [DateTime]::MinValue }
            else { Send-Message $port (Invoke-Request $request) }
        }
    }
}

function Install-Helper {
    New-Item -ItemType Directory -Force -Path (Split-Path $Program) | Out-Null
    Stop-Helper
    if ($PSCommandPath -ne $Program) { Copy-Item -Force $PSCommandPath $Program }
    $arguments = "-NoProfile -NonInteractive -ExecutionPolicy Bypass -File `"$Program`" run"
    $task = New-ScheduledTaskAction -Execute 'powershell.exe' -Argument $arguments
    $settings = New-ScheduledTaskSettingsSet -RestartCount 999 -RestartInterval (New-TimeSpan -Minutes 1) `
        -ExecutionTimeLimit ([TimeSpan]::Zero) -AllowStartIfOnBatteries -DontStopIfGoingOnBatteries
    $trigger = New-ScheduledTaskTrigger -AtStartup
    Register-ScheduledTask -Force -TaskName $TaskName -Action $task -Trigger $trigger -Settings $settings `
        -User 'SYSTEM' -RunLevel Highest | Out-Null
    Start-ScheduledTask -TaskName $TaskName
}

function Stop-Helper {
    Get-ScheduledTask -TaskName $TaskName -ErrorAction SilentlyContinue | Stop-ScheduledTask
}

function Uninstall-Helper {
    Stop-Helper
    Get-ScheduledTask -TaskName $TaskName -ErrorAction SilentlyContinue | Unregister-ScheduledTask -Confirm:$false
    Remove-Item -Force -Path $Program -ErrorAction SilentlyContinue
}

# Remove what must not be in an image of this guest: tokens, and the answer files that Windows' setup kept, which have
# passwords and come before that of a new guest's own disc. It prints their names.
function Clear-Guest {
    $patterns = @(
        (Join-Path $TokenDirectory '*.tok*')
        $OnceFile
        (Join-Path (Split-Path $Program) 'driver')  # which driver vgpuctl-setup.ps1 has installed
        "$env:SystemRoot\Panther\unattend*.xml"
        "$env:SystemRoot\Panther\Unattend\*.xml"
    )
    foreach ($file in (Get-ChildItem -Force -File -Path $patterns -ErrorAction SilentlyContinue)) {
        Remove-Item -Force -Path $file.FullName
        "removed $($file.FullName)"
    }
    'run sysprep /generalize /oobe /shutdown before this guest is an image'
}

switch ($Action) {
    'install' { Install-Helper }
    'uninstall' { Uninstall-Helper }
    'clean' { Clear-Guest }
    'show' { ConvertTo-AsciiJson (Get-Report) }
    'run' { Start-Helper }
}
