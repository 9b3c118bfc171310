"""What runs under the ray environment's interpreter: scripts, so nothing of the studio is imported here."""
