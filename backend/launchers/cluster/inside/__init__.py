"""Scripts that run under the ray environment's interpreter, so they import nothing of the studio."""
