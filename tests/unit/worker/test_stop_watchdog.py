"""A worker inside one long call still ends soon after it is asked to; one that hears the signal ends as it wants."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

BUSY = """
def tell():
    clock = time.pthread_getcpuclockid(threading.main_thread().ident)
    while time.clock_gettime(clock) < begun + 0.1:  # it is inside the call: nothing else takes its time
        time.sleep(0.01)
    print("ready", flush=True)

begun = time.thread_time()
threading.Thread(target=tell, daemon=True).start()
hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""
"""One call of many minutes that lets other threads run."""
PAUSED = 'print("ready", flush=True)\nsignal.pause()'
LOOPING = 'print("ready", flush=True)\nwhile True: pass'
CODE = """
import hashlib, signal, sys, threading, time
from backend.worker import stop_watchdog

def heard(*_):
    seen()
    sys.exit(7)

seen = stop_watchdog.start_watchdog({patience_s})
signal.signal(signal.SIGTERM, heard)
{busy}
"""


@pytest.mark.parametrize(
    ("busy", "patience_s", "code"),
    [(BUSY, 0.2, 130), (PAUSED, 60, 7), (LOOPING, 60, 7)],
    ids=["call", "paused", "loop"],
)
def test_a_long_call_is_not_waited_for(busy: str, patience_s: float, code: int) -> None:
    program = CODE.format(busy=busy, patience_s=patience_s)
    worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "ready\n"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=120) == code
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
