"""llama.cpp's own programs, built from source."""
