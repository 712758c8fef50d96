// Compile Python's standard library for Pyodide: `node compile_stdlib.mjs PACKAGE OUT.zip`.
//
// Pyodide's own archive holds sources, which a page would compile at each start: half of the time
// until its panels move. Parts that no panel needs are left out.
import { writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, out] = process.argv.slice(2).map((path) => resolve(path));
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`));
const python = await loadPyodide({ indexURL: `${folder}/` });
python.FS.mkdir("/package");
python.FS.mount(python.FS.filesystems.NODEFS, { root: folder }, "/package");
python.runPython(`
import zipfile
from importlib._bootstrap_external import _code_to_timestamp_pyc as to_pyc

UNUSED = {"_pyrepl", "doctest.py", "imaplib.py", "mailbox.py", "pdb.py", "pydoc.py",
          "unittest", "wsgiref", "xml", "xmlrpc"}
source = zipfile.ZipFile("/package/python_stdlib.zip")
with zipfile.ZipFile("/compiled.zip", "w") as made:
    for name in source.namelist():
        if name.split("/")[0] in UNUSED:
            continue
        content = source.read(name)
        if name.endswith(".py"):
            code = compile(content, name, "exec", dont_inherit=True, optimize=2)
            name, content = f"{name}c", to_pyc(code)
        made.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)
`);
writeFileSync(out, python.FS.readFile("/compiled.zip"));
