"""Promises of `deploy/`: settings that exist, no privileges, and probes that the server answers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from code_judge_server.settings import Settings
from deploy import make_grafana

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
FILES = sorted(file for file in DEPLOY.iterdir() if file.is_file())


def manifests() -> dict[str, dict[str, Any]]:
    return {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def pod() -> dict[str, Any]:
    return manifests()["Deployment"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_setting_that_is_named_exists(file: Path) -> None:
    named = {name.lower() for name in re.findall(r"CODE_JUDGE_([A-Z_]+)", file.read_text())}
    assert named <= set(Settings.model_fields)


def test_the_image_is_built_from_files_that_exist() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    assert len(sources) > 5
    assert all((DEPLOY.parent / source).exists() for source in sources)


def test_the_values_of_the_manifest_are_valid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in pod()["containers"][0]["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "a-token"))
    monkeypatch.setenv("CODE_JUDGE_HOST", "0.0.0.0")
    settings = Settings()
    (container,) = pod()["containers"]
    assert settings.num_slots == int(container["resources"]["limits"]["cpu"])
    at_once = settings.num_slots + settings.spare_slot_count + settings.max_sessions
    needed_mb = at_once * (settings.max_memory_mb + settings.max_disk_mb) + 1536
    assert needed_mb <= int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 1024
    assert pod()["terminationGracePeriodSeconds"] > settings.drain_timeout_s


def test_the_pod_asks_for_no_privilege() -> None:
    (container,) = pod()["containers"]
    security = container["securityContext"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in security
    assert pod()["securityContext"]["runAsNonRoot"]
    assert not any(key in pod() for key in ("hostPID", "hostNetwork", "hostIPC"))


def test_the_seccomp_profile_permits_what_isolates_programs() -> None:
    profile = json.loads((DEPLOY / "seccomp.json").read_text())
    denied = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert denied & {"bpf", "init_module", "kexec_load"}
    needed = {"clone", "clone3", "mount", "pivot_root", "seccomp", "sethostname", "setns", "umount2", "unshare"}
    assert not denied & (needed | {"landlock_restrict_self", "memfd_create", "pidfd_open"})


def test_the_dashboard_for_grafana_is_what_its_script_writes() -> None:
    assert make_grafana.FILE.read_text() == make_grafana.text(), "run `python deploy/make_grafana.py`"
