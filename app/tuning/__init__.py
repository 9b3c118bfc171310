"""Draws searches for the best stack: the form, and a search while it runs and after."""
