"""A real PostgreSQL for tests: a server of their own on a socket, and a new migrated database for each that asks.

The Debian package is `postgresql-15`, which `make test` installs. The server refuses to run as root, so root's tests
run it as the package's own user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psycopg

from backend.settings import Settings
from backend.store.database import open_store

INSTALLED = "/usr/lib/postgresql"
READY_S = 60.0
OPTIONS = ("-c", "listen_addresses=", "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "deadlock_timeout=200ms")


class Postgres:
    """`new` answers with the address of a database like a newly opened one's."""

    def __init__(self) -> None:
        ordered = sorted(Path(INSTALLED).glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
        assert ordered, "These tests need PostgreSQL: apt-get install postgresql-15 (or make test, which does)"
        self._bin, self._made = ordered[-1].parent, 0
        self._folder = Path(tempfile.mkdtemp(prefix="whetstone-pg-"))
        self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        if self._as:
            os.chown(self._folder, pwd.getpwnam("postgres").pw_uid, -1)
            self._folder.chmod(0o755)  # its socket is for whoever has the rights of a test, also in a user namespace
        self._data = self._folder / "data"
        created = [
            "initdb",
            "-D",
            str(self._data),
            "-U",
            "whetstone",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ]
        subprocess.run([*self._as, str(self._bin / created[0]), *created[1:]], check=True, capture_output=True, cwd="/")
        self.start()
        self._execute("CREATE DATABASE template_whetstone")
        open_store(Settings(home=self._folder / "home", database_url=self.url("template_whetstone"))).engine.dispose()

    def start(self) -> None:
        """Return once it answers."""
        command = [*self._as, str(self._bin / "postgres"), "-D", str(self._data), "-k", str(self._folder), *OPTIONS]
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        deadline = time.monotonic() + READY_S
        while True:
            try:
                self._execute("SELECT 1")
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline and self._server.poll() is None, (self._folder / "log").read_text()
                time.sleep(0.05)

    def stop(self) -> None:
        """As an administrator's restart does: sessions are ended."""
        self._server.send_signal(signal.SIGINT)
        self._server.wait(30)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def new(self) -> str:
        return self.empty("TEMPLATE template_whetstone")

    def empty(self, how: str = "") -> str:
        """One that nobody has migrated."""
        self._made += 1
        name = f"whetstone_{self._made}"
        self._execute(f"CREATE DATABASE {name} {how}")
        return self.url(name)

    def drop(self, url: str) -> None:
        with suppress(psycopg.Error):
            self._execute(f"DROP DATABASE {url.partition('?')[0].rpartition('/')[2]} WITH (FORCE)")

    def end_sessions(self) -> None:
        """Every connection but the one that asks is dropped."""
        others = "pid <> pg_backend_pid() AND datname <> 'postgres'"
        self._execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")

    def url(self, database: str) -> str:
        return f"postgresql://whetstone@/{database}?host={self._folder}"

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())
