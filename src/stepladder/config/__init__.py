"""Every option, as frozen dataclasses and StrEnums."""
