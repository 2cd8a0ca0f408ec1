"""The controller's web page: its views, its answers, and a real browser."""
