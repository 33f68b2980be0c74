"""Starts a code judge for one run, on this machine and a free port, again where it dies, and stops it with the run."""

import contextlib
import logging
import math
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO
from urllib.parse import urlsplit

from agentrl.config.schema import JudgeSection
from agentrl.errors import ConfigError, JudgeUnavailableError

logger = logging.getLogger(__name__)

_LISTENING = re.compile(r"listening on (?P<url>http://\S+:\d+)")
_OF_ANOTHER_JUDGE = re.compile(
    r"CODE_JUDGE_|MAX_(EXECUTION_TIME|MEMORY|WORKERS|STDOUT_ERROR_LENGTH|QUEUE_WORK_LIFE_TIME)$"
)
"""Settings in the environment are for a judge that somebody else runs; this one's are in the config."""

_MAX_WORDS = 2000
"""Characters of what the judge wrote that an error quotes."""

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_MAX_DEATHS = 5
"""In a row, each soon after the one before; then the judge stays dead."""
_FORGIVEN_AFTER_S = 600.0
"""A judge that worked for so long did not die of what killed it before."""
_FIRST_BACK_OFF_S = 0.5
"""Before a judge that died again is started; twice as long with every further death."""


class _KilledError(JudgeUnavailableError):
    """It was killed while it started, by whoever does such things."""


class LocalJudge:
    """A judge process; `with LocalJudge(section) as judge:` it listens at `judge.url`.

    It holds the read end of a pipe whose write end is ours, and stops when that pipe closes: so it dies with this
    process, however that ends. If it dies alone, it is started again at the same address, and its clients find it there.
    """

    def __init__(
        self, section: JudgeSection, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        """Take what the judge must keep to; nothing starts yet.

        Args:
            section: limits, and the isolation that it must reach.
            host: address of this machine to listen on.
            port: to listen on; 0: any that is free.
            token: bearer token to ask for; none but a loopback address does without.
        """
        self._section = section
        self._listen_on = host
        self._first_port = port
        self._token = token
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._watcher = threading.Thread(target=self._watch, name="judge-watch", daemon=True)
        self._starting = threading.Lock()
        self._is_stopping = threading.Event()
        self.url = ""

    @property
    def host(self) -> str:
        """Address that it listens on."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Port that it listens on; before it does, the one that it is to listen on."""
        return urlsplit(self.url).port or self._first_port

    def __enter__(self) -> "LocalJudge":
        """Start the judge and wait until it listens.

        Raises:
            ConfigError: it refuses to start, for instance because the machine cannot give `judge.min_isolation`.
            JudgeUnavailableError: it does not come up in time.
        """
        try:
            self._errors = tempfile.TemporaryFile("w+", errors="replace")
            self.url = self._first_start()
        except OSError as error:
            self._stop()
            raise ConfigError(f"judge: cannot be started: {error}") from error
        except BaseException:
            self._stop()
            raise
        logger.info("judge: listening on %s", self.url)
        if warnings := self._error_text():
            logger.warning("%s", warnings.removeprefix("WARNING "))
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the judge and every program in it."""
        self._stop()

    def _first_start(self) -> str:
        """Start a process, and another one where it is killed: nobody watches it yet."""
        for _ in range(_MAX_DEATHS):
            with contextlib.suppress(_KilledError):
                return self._start()
            logger.warning("judge: killed before it listened; starting it again")
        return self._start()

    def _start(self) -> str:
        """Start a process and return its URL, once it listens there."""
        environment = {name: value for name, value in os.environ.items() if not _OF_ANOTHER_JUDGE.match(name)}
        if self._token is not None:
            environment["CODE_JUDGE_TOKEN"] = self._token
        with self._starting:
            if self._is_stopping.is_set():
                raise JudgeUnavailableError("judge: it is being stopped")
            # A session of its own: Ctrl-C reaches the run, which stops the judge when it no longer needs it.
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        return self._wait_until_listening(self._process)

    def _watch(self) -> None:
        """Start the judge again whenever it dies by itself, at most a few times in a row."""
        started_at, num_deaths = time.monotonic(), 0
        while True:
            process = self._process
            assert process is not None, "started before"
            process.wait()
            lived_long = time.monotonic() - started_at > _FORGIVEN_AFTER_S
            started_at, num_deaths = math.inf, 1 if lived_long else num_deaths + 1
            back_off_s = _FIRST_BACK_OFF_S * 2 ** (num_deaths - 2) if num_deaths > 1 else 0.0
            if self._is_stopping.wait(back_off_s):
                return
            words = (
                f"judge: it ended by itself with code {process.returncode}: {self._error_text() or 'it wrote no error'}"
            )
            if num_deaths > _MAX_DEATHS:
                logger.error("%s; %d times in a row: it is not started again, and its programs fail", words, num_deaths)
                return
            logger.warning("%s; starting it again", words)
            if self._started_again():
                started_at = time.monotonic()
                logger.info("judge: listening on %s again", self.url)

    def _started_again(self) -> bool:
        try:
            self._start()
        except (ConfigError, JudgeUnavailableError) as error:
            logger.warning("%s", error)
            if self._process is not None:
                self._process.kill()  # it may hang, and is waited for next
            return False
        return True

    def _command(self) -> list[str]:
        limits = self._section
        # -P: a file beside the config must not shadow a module of the judge.
        command = [sys.executable, "-P", "-m", "code_judge_server", "--host", self._listen_on, "--port", str(self.port)]
        command += [
            "--exit-with-stdin",
            "--log-level",
            "warning",
            "--require-isolation",
            limits.min_isolation,
            "--num-slots",
            str(limits.num_slots),
        ]
        command += [
            "--max-wall-time-s",
            f"{limits.max_wall_time_s:g}",
            "--max-cpu-time-s",
            f"{limits.max_wall_time_s / 2:g}",
        ]
        return [*command, "--max-memory-mb", str(limits.max_memory_mb)]

    def _wait_until_listening(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None, "piped"
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # The thread goes on reading to the end, so that the judge never blocks on a full pipe.
        threading.Thread(target=_forward_lines, args=(process.stdout, lines), daemon=True).start()
        give_up_at = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                line = lines.get(timeout=max(0.0, give_up_at - time.monotonic()))
            except queue.Empty:
                raise JudgeUnavailableError(
                    f"judge: not listening after {_START_TIMEOUT_S:g} s: {self._error_text() or 'it wrote no error'}"
                ) from None
            if found := _LISTENING.search(line):
                return found["url"]
            if not line:
                code, text = process.wait(), self._error_text()
                if code < 0:
                    raise _KilledError(
                        f"judge: killed by signal {-code} before it listened. It says: {text or 'nothing'}"
                    )
                too_weak = (
                    f" (`judge.min_isolation` is `{self._section.min_isolation}`; a weaker tier must be named there)"
                )
                raise ConfigError(
                    f"judge: it ended with code {code} instead of listening{too_weak if 'require_isolation' in text else ''}. "
                    f"It says: {text}"
                )

    def _error_text(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        return _without_traceback(self._errors.read())

    def _stop(self) -> None:
        with self._starting:
            self._is_stopping.set()
        process = self._process
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()  # unlike a signal, it does not make the judge finish what it has first
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                logger.warning("judge: did not stop in %g s, killed", _STOP_TIMEOUT_S)
                process.kill()
                process.wait()
        if self._watcher.ident is not None:
            self._watcher.join()
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _without_traceback(text: str) -> str:
    """Return in one line what a process wrote, of a traceback only its last line, which is the cause."""
    before, found, after = text.rpartition("Traceback (most recent call last):\n")
    if found:
        # The exception comes after the indented frames; what follows it is the end of the process.
        lines = [line for line in after.splitlines() if line.strip() and not line.startswith(" ")]
        text = lines[0] if lines else after
        if lines and before.strip() and "Traceback" not in before:
            text = f"{before} {text}"
    return " ".join(text[-_MAX_WORDS:].split())


def _forward_lines(stream: IO[str], lines: "queue.SimpleQueue[str]") -> None:
    """Put every line of `stream` into `lines`, and an empty one at its end."""
    with stream:
        for line in stream:
            lines.put(line)
    lines.put("")
