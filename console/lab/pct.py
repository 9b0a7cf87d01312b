"""``pct``: Proxmox's container command as an SSH client of a node meets it.

The front end (command names, option parsing, checks, texts, exit codes) follows pve-container 6.1
(``PVE/CLI/pct.pm``) over pve-common 9.2 (``PVE/CLIHandler.pm``, ``JSONSchema.pm`` get_options) and
Perl's Getopt::Long; what "inside a container" means is a :class:`Node`'s business. The lab's node
is a :class:`Folder`: its containers are folders, and a command inside one is a plain process with
the container's environment.

It stands on the path of every command the console sends, so it is run as a script by an isolated
interpreter and imports next to nothing: ``python -I -S pct.py LAB_FOLDER COMMAND …``.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HOST_PATH = "/sbin:/bin:/usr/sbin:/usr/bin"
"""PATH of every PVE command (``PVE/CLIHandler.pm``); a container sees it unless --keep-env=0."""

ATTACH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH that lxc-attach gives a cleared environment."""

COMMANDS = frozenset(
    [
        *("clone", "config", "console", "cpusets", "create", "delsnapshot", "destroy", "df"),
        *("enter", "exec", "fsck", "fstrim", "help", "list", "listsnapshot", "migrate", "mount"),
        *("move-volume", "pending", "pull", "push", "reboot", "remote-migrate", "rescan"),
        *("resize", "restore", "resume", "rollback", "set", "shutdown", "snapshot", "start"),
        *("status", "stop", "suspend", "template", "unlock", "unmount"),
    ]
)
"""All that the real one has: a unique beginning of a name stands for it."""

USAGE = {
    "config": "<vmid> [OPTIONS]",
    "exec": "<vmid> [<extra-args>] [OPTIONS]",
    "list": "",
    "status": "<vmid> [OPTIONS]",
}
"""What this one does."""

OPTIONS = {
    "config": {"vmid": "=s", "current": ":s", "snapshot": "=s"},
    "exec": {"vmid": "=s", "keep-env": ":s", "extra-args": "=s@"},
    "list": {},
    "status": {"vmid": "=s", "verbose": ":s"},
}
"""Option → Getopt::Long's word for its value: mandatory, optional, list of strings."""


class Die(Exception):  # noqa: N818 - Perl's word
    """The command ends: lines for standard error and the exit status."""

    def __init__(self, text: str, status: int = 255) -> None:
        super().__init__(text)
        self.status = status


class Node(ABC):
    """What a Proxmox node knows of its containers."""

    @abstractmethod
    def vmids(self) -> Iterable[int]:
        """Containers of this node."""

    @abstractmethod
    def config(self, vmid: int) -> dict[str, str] | None:
        """Keys and values of a container's configuration; None where it has none here."""

    @abstractmethod
    def running(self, vmid: int) -> bool:
        """A frozen container counts as running."""

    @abstractmethod
    def attach(self, vmid: int, keep_env: bool, argv: list[str]) -> int:
        """Run a command inside, on this process's own standard files → exit status."""


# --- Parsing ---


def getopt(
    args: list[str], options: dict[str, str]
) -> tuple[dict[str, str | list[str]], list[str]]:
    """Getopt::Long's ``GetOptionsFromArray`` in permute mode with prefixes ``--`` and ``-``.

    → the options' values and the arguments that were none. The first ``--`` ends the options;
    names may be abbreviated and in any case; an option with an optional value takes the next
    argument, whatever it is meant to be, unless that begins with a dash.
    """
    values: dict[str, str | list[str]] = {}
    rest: list[str] = []
    complaints: list[str] = []
    todo = list(args)
    while todo:
        arg = todo.pop(0)
        if arg == "--":
            break
        if not arg.startswith("-") or arg == "-":
            rest.append(arg)
            continue
        prefix = "--" if arg.startswith("--") else "-"
        name, given = arg[len(prefix) :], None
        if (equals := name.find("=", 1)) > 0:
            name, given = name[:equals], name[equals + 1 :]
        name = name.lower()
        hits = [o for o in sorted(options) if o.startswith(name)] if name else []
        if len(hits) > 1 and name not in hits:
            complaints.append(f"Option {name} is ambiguous ({', '.join(hits)})")
            continue
        known = name if name in options else hits[0] if hits else ""
        if not known:
            complaints.append(
                f"Unknown option: {name}" if name else f"Missing option after {prefix}"
            )
            continue
        mandatory = options[known].startswith("=")
        if (given is None and not todo) or given == "":
            given = ""
            if mandatory:
                complaints.append(f"Option {known} requires an argument")
                continue
        elif given is None:
            taken = mandatory or not todo[0].startswith("-") or todo[0] == "-"
            given = todo.pop(0) if taken else ""
        if options[known].endswith("@"):
            listed = values.setdefault(known, [])
            assert isinstance(listed, list)
            listed.append(given)
        else:
            values[known] = given
    if complaints:
        raise Die("\n".join([*complaints, "400 unable to parse option"]))
    return values, rest + todo


def boolean(value: str) -> bool:
    """``PVE/JSONSchema.pm`` parse_boolean; a bare option is true."""
    if value.lower() in ("", "1", "on", "yes", "true"):
        return True
    if value.lower() in ("0", "off", "no", "false"):
        return False
    raise Die("400 unable to parse boolean option")


def locale_decoded(arg: str) -> str:
    """What is left of an argument after Perl's ``decode('locale', …)``."""
    locale = next((v for k in ("LC_ALL", "LC_CTYPE", "LANG") if (v := os.environ.get(k))), "C")
    charset = "utf-8" if "utf8" in locale.lower().replace("-", "") else "ascii"
    return os.fsencode(arg).decode(charset, "replace")


def vmid_of(value: str) -> int:
    """A container's number, or the API's complaint about it."""
    digits = value[1:] if value[:1] in ("+", "-") else value
    if not (digits.isascii() and digits.isdigit()):
        why = f"type check ('integer') failed - got '{value}'"
    elif digits != value or digits[0] == "0" or not 3 <= len(digits) <= 9:
        why = "invalid format - value does not look like a valid VM ID"
    else:
        return int(value)
    raise Die(f"400 Parameter verification failed.\nvmid: {why}")


def _parse(command: str, args: list[str]) -> tuple[dict[str, str | list[str]], list[str]]:
    """Options and the command to run inside, as get_options of ``PVE/JSONSchema.pm`` does it."""
    options, rest = getopt(args, OPTIONS[command])
    rest = [locale_decoded(arg) for arg in rest]
    if command == "list":
        if rest:
            raise Die("400 too many arguments")
        return options, []
    if rest:
        if "extra-args" in options:
            raise Die("400 internal error: extra-args must be the last argument")
        options["vmid"] = rest.pop(0)
    else:
        raise Die("400 not enough arguments")
    if rest and command != "exec":
        raise Die("400 too many arguments")
    return options, rest


# --- Commands ---


def run(node: Node, argv: list[str]) -> int:
    """One ``pct`` command → its exit status."""
    if not argv:
        raise Die("ERROR: no command specified\nUSAGE: pct <COMMAND> [ARGS] [OPTIONS]")
    hits = [c for c in COMMANDS if c.startswith(argv[0])]
    command = argv[0] if argv[0] in COMMANDS else hits[0] if len(hits) == 1 else ""
    if not command:
        raise Die(f"ERROR: unknown command 'pct {argv[0]}'\nUSAGE: pct <COMMAND> [ARGS] [OPTIONS]")
    if command not in USAGE:
        raise Die(f"pct {command}: this node is a stand-in and does only {', '.join(USAGE)}")
    try:
        options, extra = _parse(command, argv[1:])
        flags = {
            name: boolean(str(options.get(name, default)))
            for name, default in (("keep-env", "1"), ("verbose", "0"))
        }
        vmid = vmid_of(str(options["vmid"])) if command != "list" else 0
    except Die as error:
        raise Die(f"{error}\npct {command} {USAGE[command]}".rstrip()) from None
    if command == "list":
        return _list(node)
    config = node.config(vmid)
    if config is None:
        nodename = os.uname().nodename.split(".")[0]
        raise Die(f"Configuration file 'nodes/{nodename}/lxc/{vmid}.conf' does not exist", 2)
    if command == "config":
        return _say(f"{key}: {config[key]}" for key in sorted(config))
    status = "running" if node.running(vmid) else "stopped"
    if command == "status":
        if flags["verbose"]:
            return _say(
                [f"name: {config.get('hostname', '')}", f"status: {status}", f"vmid: {vmid}"]
            )
        return _say([f"status: {status}"])
    if status == "stopped":
        raise Die(f"container '{vmid}' not running!")
    if not extra:
        raise Die("missing command at /usr/share/perl5/PVE/CLI/pct.pm line 248.")
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        os.environ.pop(name, None)
    return node.attach(vmid, flags["keep-env"], extra)


def _list(node: Node) -> int:
    rows = []
    for vmid in sorted(node.vmids()):
        config = node.config(vmid) or {}
        status = "running" if node.running(vmid) else "stopped"
        rows.append((str(vmid), status, config.get("lock", ""), config.get("hostname", "")))
    if rows:
        rows.insert(0, ("VMID", "Status", "Lock", "Name"))
    return _say(f"{a:<10} {b:<10} {c:<12} {d:<20}" for a, b, c, d in rows)


def _say(lines: Iterable[str]) -> int:
    os.write(1, os.fsencode("".join(f"{line}\n" for line in lines)))
    return 0


def main(open_node: Callable[[], Node], argv: list[str]) -> int:
    """Run one command as the program does: its last word on standard error, then the status."""
    os.environ["PATH"] = HOST_PATH
    try:
        return run(open_node(), argv)
    except Die as error:
        os.write(2, os.fsencode(f"{error}\n"))
        return error.status


# --- The lab's node ---


class Folder(Node):
    """Containers as folders ``ct/<vmid>`` of a lab.

    ``config`` holds ``key: value`` lines and ``state`` one word: ``running``, ``stopped`` or
    ``frozen``. ``bin`` comes first on the PATH inside and ``root`` is root's home. Nothing is
    isolated: a path inside is the same path outside.
    """

    def __init__(self, lab: str) -> None:
        self.lab = lab

    def _read(self, vmid: int, name: str) -> str | None:
        try:
            with open(f"{self.lab}/ct/{vmid}/{name}", encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def vmids(self) -> Iterable[int]:
        names = os.listdir(f"{self.lab}/ct")  # noqa: PTH208 - pathlib is slow to import
        return [int(n) for n in names if n.isdigit() and self.config(int(n)) is not None]

    def config(self, vmid: int) -> dict[str, str] | None:
        text = self._read(vmid, "config")
        if text is None:
            return None
        return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)

    def state(self, vmid: int) -> str:
        """``running``, ``stopped`` or ``frozen``."""
        return (self._read(vmid, "state") or "stopped").strip()

    def running(self, vmid: int) -> bool:
        return self.state(vmid) != "stopped"

    def environment(self, vmid: int, keep: bool) -> dict[str, str]:
        """What a command inside finds, as lxc-attach sets it, and the lab's own marks."""
        inside = dict(os.environ) if keep else {"PATH": ATTACH_PATH}
        inside["PATH"] = f"{self.lab}/ct/{vmid}/bin:{inside['PATH']}"
        inside.update(container="lxc", TERM="linux", STOKER_SIMULATED="1")
        inside.update(STOKER_LAB=self.lab, STOKER_CONTAINER=str(vmid))
        inside.update(STOKER_KERNEL_LOG=f"{self.lab}/ct/{vmid}/gpus/kmsg")
        if inside.get("HOME") == f"{self.lab}/host/root":
            inside["HOME"] = f"{self.lab}/ct/{vmid}/root"
        return inside

    def directory(self, vmid: int) -> str:
        """Where a command inside starts: the caller's folder where there is one, else ``/``."""
        try:
            caller = os.getcwd()  # noqa: PTH109
        except OSError:
            return "/"
        if caller == f"{self.lab}/host/root":
            return f"{self.lab}/ct/{vmid}/root"
        return "/" if caller.startswith(f"{self.lab}/host") else caller

    def attach(self, vmid: int, keep_env: bool, argv: list[str]) -> int:
        while self.state(vmid) == "frozen":  # the real one hangs until the container is thawed
            time.sleep(0.05)
        env = self.environment(vmid, keep_env)
        os.chdir(self.directory(vmid))
        os.environ["PATH"] = env["PATH"]  # posix_spawnp looks the program up with the caller's
        # SIGPIPE and SIGXFSZ, which Python ignores, by number: `import signal` takes longer than
        # all the rest of this program.
        undo = (13, 25)
        try:
            try:
                child = os.posix_spawnp(argv[0], argv, env, setsigdef=undo)
            except OSError as error:
                if error.errno != 8:  # ENOEXEC: execvp would hand the file to the shell
                    raise
                script = argv[0] if "/" in argv[0] else _which(argv[0])
                child = os.posix_spawnp("/bin/sh", ["sh", script, *argv[1:]], env, setsigdef=undo)
        except OSError as error:
            where = "../src/lxc/attach.c: lxc_attach_run_command: 1841"
            why = f'{error.strerror} - Failed to exec "{argv[0]}"'
            status = 127 if error.errno == 2 else 126
            raise Die(f"lxc-attach: {vmid}: {where} {why}", status) from None
        import signal  # while the command is already on its way

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return 128 - code if code < 0 else code


def _which(name: str) -> str:
    for folder in os.environ["PATH"].split(":"):
        if os.access(f"{folder}/{name}", os.X_OK):
            return f"{folder}/{name}"
    return name


if __name__ == "__main__":
    os._exit(main(lambda: Folder(sys.argv[1]), sys.argv[2:]))
