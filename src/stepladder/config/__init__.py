"""All options, as frozen dataclasses and StrEnums."""
