"""What PyInstaller needs to know; its entry point ``pyinstaller40`` leads here."""

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """Return the folder of the hook."""
    return [str(Path(__file__).parent)]
