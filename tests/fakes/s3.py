"""moto's S3 as a process of its own: `python tests/fakes/s3.py` prints its port, then serves until it is killed.

POST /moto-api/reset-auth with a number as body: after that many calls, credentials and policies are enforced.
"""

from __future__ import annotations

import logging
import threading

from moto.server import ThreadedMotoServer


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
