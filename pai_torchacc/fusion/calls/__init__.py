"""Calls from Python, of modules and of functions of torch, through C."""
