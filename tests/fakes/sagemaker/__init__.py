"""SageMaker on loopback: an account with a clock that tests drive, faults, and operations in modules of their own."""
