"""Measurements on several devices: processes that take part in a trial, steered by this one."""
