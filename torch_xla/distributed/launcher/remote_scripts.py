"""Generate the bash scripts that workers run. All user input is quoted: it arrives unchanged and is not evaluated."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from torch_xla.distributed.launcher.options import Job

#: The environment variable that marks all processes of a job; its value is the job's name.
MARK = "TORCH_XLA_DIST"

#: Seconds from SIGTERM to SIGKILL.
PATIENCE = 10

#: Passes the line of export_line from the guard to the command's shell, in its environment, which others cannot read.
_EXPORTS = "TORCH_XLA_EXPORTS"

_EVALUATE = f'eval "${_EXPORTS}"; unset {_EXPORTS}'

#: Variables that docker's client reads itself: they are passed on its command line, which others can read.
_READ_BY_DOCKER = re.compile(r"DOCKER_.*|LD_.*|HOME|PATH")

# The launcher sends a line of variables through the script's standard input, then an empty line, and holds it open as
# long as it lives. Without the empty line (as in the output of --dry-run) end of input does not end the command.
# A process that has ended still receives signals until its parent waits for it, which the first process of a container
# may never do: both scripts look at the states of processes (Z: ended) instead of the result of kill -0.
# "finish" gets the command's process where it may not lead a group yet, because the launcher ended immediately.
_GUARD = """\
exec 3<&0
IFS= read -r -u 3 exports || {{ echo "xla_dist: the connection to this worker forwards no input" >&2; exit 126; }}
{exports}=$exports setsid bash -c {command} </dev/null 3<&- &
job=$!
has_process() {{
  for stat in /proc/[0-9]*/stat; do
    line=
    IFS= read -r -d "" line <"$stat"
    set -- ${{line##*) }}
    [ "$3" = $job ] && [ "$1" != Z ] && return
  done
  return 1
}}
finish() {{
  {before_end}kill -TERM -- -$job || kill -TERM $1 || return
  for _ in $(seq {patience}); do has_process || return; sleep 0.1; done
  kill -KILL -- -$job
}} 2>/dev/null
( read -r -u 3 _ && {{ while read -r -u 3 _; do :; done; finish $job; }} ) &
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
has_process() {{
  for process in $found; do
    line=
    IFS= read -r -d "" line <"/proc/$process/stat"
    set -- ${{line##*) }}
    [ "${{1:-Z}}" != Z ] && return
  done
  return 1
}} 2>/dev/null
[ -z "$found" ] || kill -TERM $found 2>/dev/null
for _ in $(seq 50); do has_process || exit 0; sleep 0.1; done
kill -KILL $found 2>/dev/null
exit 0
"""

_REMOVE_CONTAINERS = f"""\
containers=$(docker ps -aq --filter label={MARK})
[ -z "$containers" ] || docker rm -f $containers >/dev/null
"""


def export_line(job: Job, variables: Mapping[str, str]) -> str:
    """Return a line of bash that exports the variables; the script of ``run_script`` reads it from standard input.

    Values are not in the script, because every user of a host can read the command lines of all processes.
    """
    own = {n: v for n, v in variables.items() if not (job.docker_image and _READ_BY_DOCKER.fullmatch(n))}
    return f"export {' '.join(f'{name}={_quote(value)}' for name, value in own.items())}"


def _quote(value: str) -> str:
    if "\n" not in value:
        return shlex.quote(value)
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{escaped}'"


def run_script(job: Job, variables: Mapping[str, str]) -> str:
    """Return a script that runs the job's command in a new session, and ends the session when the launcher ends.

    It reads the values of the variables from its standard input (see export_line); only their names are in the script.
    The exit code is the command's; on a remote host 254 replaces 255.
    """
    command, before_end = _plain(job), ""
    if job.docker_image:
        name = shlex.quote(_container(job, variables))
        command = _docker(job, variables)
        if job.docker_container:  # a user-defined name, which an earlier container may still have
            command = f"docker rm -f {name} >/dev/null 2>&1\n{command}"
        before_end = f"docker rm -f {name} >/dev/null; "
    # ssh returns 255 when the connection was lost.
    translate = "" if job.local else "[ $code -ne 255 ] || code=254\n"
    return _GUARD.format(
        exports=_EXPORTS,
        command=shlex.quote(command),
        before_end=before_end,
        translate=translate,
        patience=10 * PATIENCE,
    )


def check_script(job: Job) -> str:
    """Return a script that fails, with a line on stderr, if the host lacks a tool; ends earlier jobs if requested."""
    tools = ["setsid", *(["docker"] if job.docker_image else [])]
    lines = [f'command -v {tool} >/dev/null || {{ echo "{tool} is not installed" >&2; exit 1; }}' for tool in tools]
    if job.conda_env:
        lines.append(_conda(job.conda_env))
    if job.end_earlier_jobs:
        lines.append(kill_script("") if not job.docker_image else f"{_REMOVE_CONTAINERS}{kill_script('')}")
    return "\n".join(lines)


def kill_script(mark: str) -> str:
    """Return a script that terminates the user's processes with this mark, or with any mark if it is empty."""
    pattern = f"^{MARK}={mark}$" if mark else f"^{MARK}="
    return _SWEEP.format(pattern=shlex.quote(pattern))


def _plain(job: Job) -> str:
    conda = [_conda(job.conda_env)] if job.conda_env else []
    return "\n".join([*conda, _EVALUATE, f"exec {shlex.join(job.command)}"])


def _conda(name: str) -> str:
    # ssh starts a non-login shell for a command; it has not read the profile, which sets up conda.
    base = 'command -v conda >/dev/null || . /etc/profile; . "$(conda info --base)/etc/profile.d/conda.sh"'
    return f'{base} && conda activate {shlex.quote(name)} || {{ echo "conda activate failed" >&2; exit 1; }}'


def _docker(job: Job, variables: Mapping[str, str]) -> str:
    label = f"{MARK}={variables[MARK]}"
    words = ["docker", "run", "--rm", "--name", _container(job, variables), "--label", label, "--network=host"]
    for name, value in variables.items():  # for a name without a value, docker reads its environment
        words += ["-e", f"{name}={value}" if _READ_BY_DOCKER.fullmatch(name) else name]
    command = shlex.join([*words, *job.docker_run_flags, job.docker_image, *job.command])
    return f"{_EVALUATE}\nexec {command}"


def _container(job: Job, variables: Mapping[str, str]) -> str:
    """Return a unique container name, unless the user has given one; workers on one host have different names."""
    if not job.docker_container:
        return f"torch_xla_dist_{variables[MARK]}_{variables['RANK']}"
    return f"{job.docker_container}_{variables['RANK']}" if job.local > 1 else job.docker_container
