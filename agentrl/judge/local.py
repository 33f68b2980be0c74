"""A code judge for one run, on this machine and a free port; it is restarted if it dies, and stopped with the run."""

import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO
from urllib.parse import urlsplit

from agentrl.config.schema.judge import JudgeSection
from agentrl.errors import ConfigError, JudgeUnavailableError

logger = logging.getLogger(__name__)

_LISTENING = re.compile(rb"listening on (http://\S+:\d+)\s")
_OF_ANOTHER_JUDGE = re.compile(
    r"CODE_JUDGE_|MAX_(EXECUTION_TIME|MEMORY|WORKERS|STDOUT_ERROR_LENGTH|QUEUE_WORK_LIFE_TIME)$"
)
"""Environment variables of other judges; this judge's settings are in the config."""
_MAX_QUOTED_CHARACTERS = 2000
"""Length of the judge's output in an error."""
_START_TIMEOUT_S = 60.0
_LOOK_EVERY_S = 0.02
_STOP_TIMEOUT_S = 5.0
_SESSION_IDLE_S = 3600
"""Longer than a trajectory waits between two calls; the tool closes its sessions itself."""
_FORGIVEN_AFTER_S = 600.0
"""Working time after which earlier deaths no longer count."""
_FIRST_BACK_OFF_S = 0.25
"""Pause before the first restart; doubled by every further death."""
_MAX_BACK_OFF_S = 32.0


class LocalJudge:
    """A judge process; `with LocalJudge(section) as judge:` it listens at `judge.url`.

    It holds the read end of a pipe of this process and stops when the pipe closes, so it dies with this process. If it dies
    alone, it is restarted at the same address.
    """

    def __init__(
        self,
        section: JudgeSection,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        max_sessions: int = 0,
    ) -> None:
        """Take the settings; entering the context starts the judge.

        Args:
            section: limits, and the required isolation.
            host: address of this machine to listen on.
            port: port to listen on; 0: any free one.
            token: bearer token to demand; required unless `host` is a loopback address.
            max_sessions: Python sessions at once.
        """
        self.url = ""
        self.host, self.port = host, port
        self._section = section
        self._token = token
        self._max_sessions = max_sessions
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[str]
        self._watcher = threading.Thread(target=self._watch, name="judge-watch", daemon=True)
        self._starting = threading.Lock()
        self._is_stopping = threading.Event()

    def __enter__(self) -> "LocalJudge":
        """Start the judge and wait until it listens.

        Raises:
            ConfigError: it refuses to start, for instance because the machine cannot give `judge.min_isolation`.
            JudgeUnavailableError: it does not come up in time, or is killed.
        """
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        try:
            self.url = self._start()
        except BaseException:
            self._stop()
            raise
        self.port = urlsplit(self.url).port or 0
        logger.info("judge: listening on %s", self.url)
        if warnings := self._error_text():
            logger.warning("%s", warnings.removeprefix("WARNING "))
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the judge and every program in it."""
        self._stop()

    def _start(self) -> str:
        """Start a process and return its URL, once it listens there."""
        environment = {name: value for name, value in os.environ.items() if not _OF_ANOTHER_JUDGE.match(name)}
        if self._token is not None:
            environment["CODE_JUDGE_TOKEN"] = self._token
        with tempfile.TemporaryFile() as output:
            with self._starting:
                if self._is_stopping.is_set():
                    raise JudgeUnavailableError("judge: it is being stopped")
                # A separate session: Ctrl-C must reach the run only, which stops the judge later.
                self._process = process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=self._errors,
                    env=environment,
                    start_new_session=True,
                )
            give_up_at = time.monotonic() + _START_TIMEOUT_S
            while time.monotonic() < give_up_at:
                if match := _LISTENING.search(os.pread(output.fileno(), 4096, 0)):
                    return match[1].decode()
                if process.poll() is not None:
                    raise self._start_error(process.returncode)
                time.sleep(_LOOK_EVERY_S)
        raise JudgeUnavailableError(
            f"judge: not listening after {_START_TIMEOUT_S:g} s: {self._error_text() or 'no error output'}"
        )

    def _command(self) -> list[str]:
        limits = self._section
        options = {
            "host": self.host,
            "port": self.port,
            "log-level": "warning",
            "require-isolation": limits.min_isolation,
            "num-slots": limits.num_slots,
            "max-wall-time-s": f"{limits.max_wall_time_s:g}",
            "max-cpu-time-s": f"{limits.max_wall_time_s / 2:g}",
            "max-memory-mb": limits.max_memory_mb,
            "max-sessions": self._max_sessions,
            "session-idle-s": _SESSION_IDLE_S,
        }
        # `-P`: a file beside the config must not shadow a module of the judge.
        command = [sys.executable, "-P", "-m", "code_judge_server", "--exit-with-stdin"]
        return command + [word for name, value in options.items() for word in (f"--{name}", str(value))]

    def _start_error(self, code: int) -> Exception:
        text = self._error_text()
        if code < 0:
            return JudgeUnavailableError(
                f"judge: killed by signal {-code} before it listened. Its output: {text or 'none'}"
            )
        too_weak = f" (`judge.min_isolation` is `{self._section.min_isolation}`; set it to a weaker tier to allow that)"
        return ConfigError(
            f"judge: it ended with code {code} instead of listening{too_weak if 'require_isolation' in text else ''}. "
            f"Its output: {text}"
        )

    def _watch(self) -> None:
        """Restart the judge whenever it dies."""
        started_at, back_off_s = time.monotonic(), _FIRST_BACK_OFF_S
        while True:
            process = self._process
            assert process is not None, "started before"
            process.wait()
            if time.monotonic() - started_at > _FORGIVEN_AFTER_S:
                back_off_s = _FIRST_BACK_OFF_S
            if self._is_stopping.wait(back_off_s):
                return
            back_off_s, started_at = min(2 * back_off_s, _MAX_BACK_OFF_S), time.monotonic()
            output = self._error_text() or "no error output"
            logger.warning("judge: died with code %d: %s; restarting", process.returncode, output)
            try:
                self._start()
                logger.info("judge: listening on %s again", self.url)
            except (ConfigError, JudgeUnavailableError, OSError) as error:  # OSError: a full disk
                logger.warning("%s", error)
                if self._process is not None:
                    self._process.kill()  # it may hang, and this thread waits for it

    def _error_text(self) -> str:
        """Return the end of the judge's error output in one line, of tracebacks the exceptions alone."""
        self._errors.seek(0)
        lines = self._errors.read().splitlines()
        text = " ".join(line for line in lines if not line.startswith((" ", "Traceback")))
        return text[-_MAX_QUOTED_CHARACTERS:].strip()

    def _stop(self) -> None:
        with self._starting:
            self._is_stopping.set()
        process = self._process
        if process is not None:
            assert process.stdin is not None, "piped"
            process.stdin.close()  # unlike a signal, it does not let the judge finish its programs
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                logger.warning("judge: did not stop in %g s, killed", _STOP_TIMEOUT_S)
                process.kill()
                process.wait()
        if self._watcher.ident is not None:
            self._watcher.join()
        self._errors.close()
