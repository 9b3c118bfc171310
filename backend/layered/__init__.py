"""A model one decoder layer at a time: its outline without weights, its families, and passes of text through a
layer."""
