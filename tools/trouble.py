"""Find the cause in what pip or the system said, and say it in one line with the fix.

In the syntax of Python 3.6, like install.py.
"""

import re

AGAIN = "and run the same command again: it goes on from here."

# What pip or the system says → what we say. The first that matches counts: on a full disk, or
# without a network, pip also complains that it found no package. A retry that helped is no trouble:
# only the last one, "total=0", counts. What a pattern names, (?P<package>...), a message may use.
TROUBLE = (
    (
        r"No space left on device|Disk quota exceeded|not enough free disk space",
        "the disk is full. The course takes about {gigabytes} GB with the CPU build of torch "
        "(make lab TORCH_INDEX=https://download.pytorch.org/whl/cpu) and 8 GB with CUDA's, pip's "
        "default on Linux. Free some space (or "
        f"set TMPDIR to a folder on a larger disk, if it is the one of {{tmp}} that is full) "
        f"{AGAIN}",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|invalid path to a TLS CA certificate|TLS CA certificate bundle",
        "the package index could not be trusted, as happens behind a company's proxy. Set "
        "PIP_CERT to the company's certificate "
        f"file {AGAIN}",
    ),
    (
        r"407 Proxy Authentication|Proxy Authentication Required",
        f"the proxy asks for a name and a password. Set HTTPS_PROXY to "
        f"http://NAME:PASSWORD@HOST:PORT {AGAIN}",
    ),
    (
        r"HTTP error (?P<status>401|403)|(?P<status2>401|403) Client Error|User for [^ ]+:",
        "the package index refuses to serve you (it asks for a login, or blocks this address). "
        "Check PIP_INDEX_URL, "
        f"PIP_EXTRA_INDEX_URL and TORCH_INDEX, or try another network, {AGAIN}",
    ),
    (
        r"HTTP error (?P<status>5\d\d)|(?P<status2>5\d\d) Server Error",
        f"the package index is out of order just now. Wait a little {AGAIN}",
    ),
    (
        r"Retry\(total=0\b|Max retries exceeded|^(ERROR|error).*([Cc]onnect|timed out|name "
        r"resolution|[Pp]roxy|[Ii]ncomplete)",
        f"the package index cannot be reached. Check the network (behind a proxy, set "
        f"HTTPS_PROXY) {AGAIN}",
    ),
    (
        r"THESE PACKAGES DO NOT MATCH THE HASHES|BadZipFile|has an invalid wheel|Wheel .* is "
        r"invalid|hash mismatch",
        f"a download arrived damaged. Empty pip's cache with `.venv/bin/python -m pip cache "
        f"purge` {AGAIN}",
    ),
    (
        r"Permission denied|Read-only file system|Operation not permitted",
        f"a file or folder cannot be written. Make {{root}} and all in it writable by you {AGAIN}",
    ),
    (
        r"Location '(?P<index>[^']*?)(?:/torch/)?' is ignored|(?P<index2>\S+) .*(?:has unexpected "
        r"URL|not a valid URL)",
        "{index} is no address of a package index. Correct TORCH_INDEX (it begins with https://) "
        + AGAIN,
    ),
    (
        # pip lists "4.1.1 Requires-Python >=3.11.5; ..." first, and then says which version it
        # wanted
        r"Requires-Python(?s:.*)No matching distribution found for "
        r"(?P<package>(?!torch\b)[\w.-]+==\S+)|Package '(?P<package2>[^']+)' requires a different "
        r"Python",
        "{package} needs another Python than {python_full}, the one at {executable}. Use another, "
        "such as `make lab PYTHON=python3.12`, after removing .venv; if the course should work "
        "with this one, please report it.",
    ),
    (
        r"No matching distribution found for torch\b",
        "there is no torch {torch} for Python {python} and this machine where pip looks. Try "
        "another Python, such as `make lab PYTHON=python3.12` after removing .venv, or another "
        "TORCH_INDEX.",
    ),
    (
        r"No matching distribution found for (?P<package>[^\s;]+)",
        "pip found no {package} for Python {python} where it looks. If TORCH_INDEX, "
        "PIP_INDEX_URL, PIP_NO_INDEX or a pip.conf of "
        f"yours says where, correct or unset that {AGAIN}",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies",
        "pip cannot bring the versions together. If PIP_CONSTRAINT is set, unset it; if "
        "pyproject.toml or constraints.txt was "
        f"changed, take that back {AGAIN}",
    ),
    (
        r"Invalid requirement: |Invalid constraint|[Ii]nvalid pyproject.toml|Cannot "
        r"parse.*pyproject|TOMLDecodeError",
        "constraints.txt or pyproject.toml is damaged. Get them back with `git checkout "
        "constraints.txt pyproject.toml` " + AGAIN,
    ),
    (
        r"[Rr]equir(?:e|ing).hashes|Can ?not perform a '--user' install|Can not combine '--user'",
        f"a setting of pip's gets in the way: take require-hashes, user, target and prefix out of "
        f"your pip.conf {AGAIN}",
    ),
    (
        r"(?:subprocess-exited-with-error(?s:.*))?Failed to build (?:installable "
        r"wheels.*\()?'?(?P<package>[\w.-]+)|metadata-generation-failed|subprocess-exited-with-error",
        "{package} has no ready-made build for Python {python} on this machine, and building it "
        "here failed. Use a Python that the README names, such as `make lab PYTHON=python3.12`, "
        "after removing .venv. (If PIP_NO_BINARY is set, unset it.)",
    ),
    (
        r"MemoryError|Cannot allocate memory",
        f"the machine is out of memory. Close some programs {AGAIN}",
    ),
)


def explain(output, **facts):
    """Return the line for the first cause that is found in a command's output, or None;
    facts fill in the message.
    """
    for pattern, message in TROUBLE:
        found = re.search(pattern, output, re.MULTILINE)
        if found:
            # package, package2: one name for the alternatives of a pattern, which must differ in
            #                    theirs
            named = {name.rstrip("2"): value for name, value in found.groupdict().items() if value}
            return message.format(**dict(facts, **named))
    return None
