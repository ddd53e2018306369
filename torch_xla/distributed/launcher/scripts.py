"""The bash scripts that workers run. Every word of the user's is quoted: it arrives as it is and executes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from torch_xla.distributed.launcher.options import Job

#: The variable that marks all processes of a job; its value is the job's name.
MARK = "TORCH_XLA_DIST"

#: Seconds a command has to end by itself before it is killed.
PATIENCE = 10

# The launcher holds the script's standard input open as long as it lives and sends one line through it. A connection
# that passes no input on at all must not look like a launcher that has died: hence the first read.
_GUARD = """\
exec 3<&0
setsid bash -c {command} </dev/null 3<&- &
job=$!
finish() {{
  {before_end}kill -TERM -- -$job || return
  for _ in $(seq {patience}); do kill -0 -- -$job || return; sleep 0.1; done
  kill -KILL -- -$job
}} 2>/dev/null
( read -r -u 3 _ && {{ while read -r -u 3 _; do :; done; finish; }} ) &
watch=$!
trap : TERM INT HUP
wait $job
code=$?
exec 3<&-
finish
kill $watch 2>/dev/null
{translate}exit $code
"""

_SWEEP = """\
found=
for process in /proc/[0-9]*; do
  if grep -qzE {pattern} "$process/environ" 2>/dev/null; then found="$found ${{process#/proc/}}"; fi
done
[ -z "$found" ] || kill -TERM $found 2>/dev/null
for _ in $(seq 50); do [ -z "$found" ] || ! kill -0 $found 2>/dev/null && exit 0; sleep 0.1; done
kill -KILL $found 2>/dev/null
exit 0
"""


def run(job: Job, variables: Mapping[str, str]) -> str:
    """Runs the job's command with these variables, in a session of its own, and ends all of it when the launcher ends.

    The exit code is the command's; 254 stands for 255 on another machine.
    """
    command, before_end = _plain(job, variables), ""
    if job.docker_image:
        name = shlex.quote(job.docker_container)
        command = f"docker rm -f {name} >/dev/null 2>&1\n{_docker(job, variables)}"
        before_end = f"docker rm -f {name} >/dev/null; "
    # 255 is how ssh says that the connection was lost.
    translate = "" if job.local else "[ $code -ne 255 ] || code=254\n"
    return _GUARD.format(
        command=shlex.quote(command), before_end=before_end, translate=translate, patience=10 * PATIENCE
    )


def check(job: Job) -> str:
    """Fails, with a line on stderr, where the machine lacks what the job needs; ends earlier jobs if that is wanted."""
    tools = ["setsid", *(["docker"] if job.docker_image else [])]
    lines = [f'command -v {tool} >/dev/null || {{ echo "{tool} is not installed" >&2; exit 1; }}' for tool in tools]
    if job.conda_env:
        lines.append(_conda(job.conda_env))
    if job.end_earlier_jobs:
        lines.append(sweep(""))
    return "\n".join(lines)


def sweep(mark: str) -> str:
    """Ends every process of the user's that bears this mark, or any mark if it is empty."""
    pattern = f"^{MARK}={mark}$" if mark else f"^{MARK}="
    return _SWEEP.format(pattern=shlex.quote(pattern))


def _plain(job: Job, variables: Mapping[str, str]) -> str:
    conda = [_conda(job.conda_env)] if job.conda_env else []
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([*conda, *exports, f"exec {shlex.join(job.command)}"])


def _conda(name: str) -> str:
    # A shell that ssh has started for one command has not read the profile, which is what knows conda.
    base = 'command -v conda >/dev/null || . /etc/profile; . "$(conda info --base)/etc/profile.d/conda.sh"'
    return f'{base} && conda activate {shlex.quote(name)} || {{ echo "conda activate failed" >&2; exit 1; }}'


def _docker(job: Job, variables: Mapping[str, str]) -> str:
    words = ["docker", "run", "--rm", "--name", job.docker_container, "--network=host"]
    for name, value in variables.items():
        words += ["-e", f"{name}={value}"]
    return f"exec {shlex.join([*words, *job.docker_run_flags, job.docker_image, *job.command])}"
