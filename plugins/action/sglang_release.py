"""Builds releases and wheelhouses in sight; see the module of the same name.

What takes minutes runs in the background of the host, by Ansible's own means, and says what it does in a file that is
read here. A controller that goes away does not end it: the next run finds the release, or waits for the build.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

PROJECT = Path(__file__).resolve().parents[2]
# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from sglang_deploy import release_wheelhouse  # noqa: E402

LIMIT_S = 6 * 3600
"""Seconds after which a build is ended: a first one with CUDA kernels from source takes an hour at worst."""
REPEAT_S = 60.0
"""Seconds of silence after which the last line is shown again, with its age."""
GONE_S = 600.0
"""Seconds to wait for the outcome of a build that does not run any more: what would have written it was killed, too."""
BATCH_BYTES, BATCH_FILES = 256 * 2**20, 24
"""How much of a wheelhouse is sent before it is checked and put into place; an interrupted transfer loses no more."""
OWN = frozenset({"wheelhouse_manifest", "received", "progress_file", "offset"})


class ActionModule(ActionBase):  # type: ignore[misc]
    """The module's options, and `build`: false looks only and answers `problem` where the release cannot be built."""

    TRANSFERS_FILES = True
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._vars = task_vars or {}
        arguments = dict(self._task.args)
        if wrong := sorted(OWN & set(arguments)):
            raise AnsibleActionFail(f"sglang_release sets {', '.join(wrong)} by itself; leave it out")
        build = boolean(arguments.pop("build", True))
        state = arguments.get("state", "present")
        if state == "pruned" or (state == "wheelhouse" and self._task.check_mode):
            return {**result, **self._call(arguments)}
        if state == "wheelhouse":
            return {**result, **self._in_sight(arguments, str(Path(str(arguments["wheelhouse"])).parent))}
        if state != "present":
            raise AnsibleActionFail(f"sglang_release takes the state {state} from nobody but itself")
        given, arguments = self._from_here(arguments)
        found = self._call({**arguments, "state": "looked"})
        if not build:
            failed = found.pop("failed", False)
            return {**result, **found, "changed": False, **({"problem": found["msg"]} if failed else {})}
        if found.get("failed") or found.get("unreachable") or not found["changed"] or self._task.check_mode:
            return {**result, **found}
        if given and (problem := self._send(given, arguments, found["wheelhouse_lacks"])):
            return {**result, **problem}
        return {**result, **self._in_sight(arguments, str(arguments.get("root", "/opt/sglang")))}

    def _call(self, arguments: dict[str, Any], name: str = "sglang_release") -> dict[str, Any]:
        answer = self._execute_module(module_name=name, module_args=arguments, task_vars=self._vars)
        return {key: value for key, value in answer.items() if key != "invocation"}

    def _job(self, job: str, mode: str) -> dict[str, Any]:
        folder = self.get_shell_option("async_dir", default="~/.ansible_async")
        return self._call({"jid": job, "mode": mode, "_async_dir": folder}, "ansible.legacy.async_status")

    def _say(self, text: str, began: float, seconds: float | None = None) -> None:
        passed = int(time.monotonic() - began if seconds is None else seconds)
        host = self._vars.get("inventory_hostname", self._play_context.remote_addr)
        Display().display(f"{host}  {passed // 60}:{passed % 60:02d}  {text}")

    def _from_here(self, arguments: dict[str, Any]) -> tuple[Path | None, dict[str, Any]]:
        """The wheelhouse where it lies on this machine and not on the host, and the arguments with its manifest."""
        kind = arguments.get("source") or ((arguments.get("stack") or {}).get("source") or {}).get("kind")
        path = Path(str(arguments.get("wheelhouse") or "")).expanduser()
        if kind != "wheelhouse" or not arguments.get("wheelhouse") or self._connection.transport == "local":
            return None, arguments
        if not path.exists():
            return None, arguments  # then it is a path on the host
        try:
            manifest = release_wheelhouse.read_manifest(path)
        except release_wheelhouse.WheelhouseError as error:
            raise AnsibleActionFail(str(error)) from error
        return path, {**arguments, "wheelhouse_manifest": manifest}

    def _send(self, path: Path, arguments: dict[str, Any], lacks: list[str]) -> dict[str, Any] | None:
        """Bring the files that the host lacks there; what went wrong, or None."""
        manifest = arguments["wheelhouse_manifest"]
        sizes = {name: manifest["files"].get(Path(name).name, {"bytes": 0})["bytes"] for name in lacks}
        total, done, began = sum(sizes.values()), 0, time.monotonic()
        for batch in _batches(sizes):
            self._say(f"sending the wheelhouse: {done / 1e9:.1f} of {total / 1e9:.1f} GB, {batch[0]}", began)
            folder = self._make_tmp_path()
            try:
                with tempfile.TemporaryDirectory() as here:
                    for name in batch:
                        local = path / name
                        if not path.is_dir():
                            local = Path(here) / Path(name).name
                            release_wheelhouse.copy_out(path, name, local)
                        self._transfer_file(str(local), self._connection._shell.join_path(folder, Path(name).name))
                call = {**arguments, "state": "received", "received": folder}
                answer = self._call(call)
            except (OSError, release_wheelhouse.WheelhouseError) as error:
                return {"failed": True, "msg": f"The wheelhouse {path} could not be sent: {error}"}
            finally:
                self._remove_tmp_path(folder)
                self._connection._shell.tmpdir = None
            if "wheelhouse_lacks" not in answer:
                return answer
            done += sum(sizes[name] for name in batch)
        return None

    def _in_sight(self, arguments: dict[str, Any], folder: str) -> dict[str, Any]:
        """Run the module in the host's background and show what it says; its result."""
        said = f"{folder}/.progress-{secrets.token_hex(6)}"
        self._task.async_val = LIMIT_S
        try:
            started = self._execute_module(
                module_name="sglang_release",
                module_args={**arguments, "progress_file": said},
                task_vars=self._vars,
                wrap_async=True,
            )
        finally:
            self._task.async_val = 0
        if "ansible_job_id" not in started:
            return dict(started)
        job, began = started["ansible_job_id"], time.monotonic()
        offset, last, shown, alive, pause = 0, "", began, began, 1.0
        while True:
            time.sleep(pause)
            pause = min(pause + 1, 5)
            seen = self._call({"state": "progress", "progress_file": said, "offset": offset})
            if "offset" not in seen:
                return seen
            offset = seen["offset"]
            for seconds, text in seen["lines"]:
                self._say(text, began, seconds)
                last, shown, pause = text, time.monotonic(), 1.0
            if last and time.monotonic() - shown >= REPEAT_S:
                self._say(f"{last} (still)", began)
                shown = time.monotonic()
            if seen["alive"]:
                alive = time.monotonic()
                continue
            ended = self._job(job, "status")
            if ended.get("finished") or "ansible_job_id" not in ended:
                break
            if time.monotonic() - alive > GONE_S:
                ended = {"failed": True, "msg": f"The build was killed after `{last or 'nothing'}`. Run this again."}
                break
        self._job(job, "cleanup")
        self._call({"path": said, "state": "absent"}, "ansible.legacy.file")
        ours = ("ansible_job_id", "started", "finished", "results_file", "stdout", "stdout_lines", "stderr", "stderr_lines")
        return {key: value for key, value in ended.items() if key not in ours}


def _batches(sizes: dict[str, int]) -> Iterator[list[str]]:
    """Names in groups of a size that is checked at once; a large file is alone."""
    batch: list[str] = []
    for name, size in sizes.items():
        if batch and (len(batch) == BATCH_FILES or sum(sizes[each] for each in batch) + size > BATCH_BYTES):
            yield batch
            batch = []
        batch.append(name)
    if batch:
        yield batch
