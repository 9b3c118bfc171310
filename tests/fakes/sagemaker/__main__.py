"""`python -m tests.fakes.sagemaker`: prints its port, then serves an empty account until it is killed."""

from __future__ import annotations

import threading

from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.server import serving

if __name__ == "__main__":
    with serving(Account()) as url:
        print(url.rsplit(":", 1)[1], flush=True)
        threading.Event().wait()
