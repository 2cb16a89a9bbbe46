#!/usr/bin/env python3
"""mutants.py - builds the product with one deliberate fault after the other and shows which test catches it.

Each enumerator of drift/base/mutant.hpp is one wrong line of the product, chosen with -DDRIFT_MUTANT. For each, only the sources
that hold that line are compiled again; their objects are linked before libdrift.a, so they take the place of the archive's own.
Then the unit and property tests run until one fails. A mutant that no test catches is a hole in the tests: exit code 1.

Those of server/mutant.hpp, holes in what keeps tenants apart, are chosen when the program runs (DRIFT_SERVER_MUTANT): their sources are
compiled once, with -DDRIFT_SERVER_MUTANTS, and the server's schedule tests run with one hole open after the other.

    mutants.py                        all of them, in a build folder of its own (build/mutants)
    mutants.py --only kA,kB           these (kNone, the product as it is, runs too and must pass); server: all holes
    mutants.py --build DIR --no-build use a folder that is built already, e.g. from inside ctest
    mutants.py --no-baseline          leaves kNone out, where the tests themselves have just run
    mutants.py --markdown FILE        also writes the table there, between the marks `<!-- mutants -->`

Exit codes: 0 all caught, 1 a mutant survived or the product itself failed, 2 usage, 3 something could not be built.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER = os.path.join(ROOT, "drift", "base", "mutant.hpp")
SERVER_HEADER = os.path.join(ROOT, "server", "mutant.hpp")
# Test programs, in the order they run. The others test code that no mutant touches.
UNIT = ["base_test", "spec_test", "recal_test", "propose_test", "trace_test", "decode_test", "testing_test", "bank_test"]
PROPERTY = "property_test"
SERVER = "server_schedule_test"  # of the holes; the tests that are about tenants and their banks, those of whole answers first
SERVER_FILTERS = ["SchedulerTenants.*:SchedulerShared.*", "BanksTest.*"]
# The long-running property tests are left out, for all mutants alike: 1e5 seeds each, or tens of thousands of tokens.
PROPERTY_FILTER = "-ChiSquare.*:Systematic.*:Idiosyncratic.*"
TIMEOUT_S = 300


def fail(code, message):
    print("mutants.py: " + message, file=sys.stderr)
    sys.exit(code)


def enumerators(header, name):
    text = open(header, encoding="utf-8").read()
    body = re.search(r"enum class " + name + r" \{(.*?)\};", text, re.S)
    if not body:
        fail(3, "no `enum class %s` in %s" % (name, header))
    found = re.findall(r"^\s*(k\w+),\s*(?://\s*(.*))?$", body.group(1), re.M)
    if not found or found[0][0] != "kNone":
        fail(3, "the first enumerator of %s must be kNone" % name)
    return found[1:]


def sources_with(mutant):
    """Product sources that hold the mutant's line; those in headers count for every source beside them."""
    out = []
    for folder, _, files in os.walk(os.path.join(ROOT, "drift")):
        for name in files:
            if name.endswith(".cpp") and not name.endswith("_test.cpp"):
                path = os.path.join(folder, name)
                if re.search(r"\bMutant::" + mutant + r"\b", open(path, encoding="utf-8").read()):
                    out.append(path)
    return sorted(out)


class Build:
    def __init__(self, folder):
        self.folder = folder
        self.compile = {}
        for entry in json.load(open(os.path.join(folder, "compile_commands.json"), encoding="utf-8")):
            self.compile[os.path.realpath(entry["file"])] = shlex.split(entry["command"])
        self.link = {}
        listing = self.ninja("-t", "targets", "all")
        for program in UNIT + [PROPERTY, SERVER]:
            found = re.search(r"^(\S*\b" + program + r"): CXX_EXECUTABLE_LINKER", listing, re.M)
            if not found:
                continue
            last = self.ninja("-t", "commands", "-s", found.group(1)).strip().splitlines()[-1]
            words = [w for w in shlex.split(last) if w not in (":", "&&")]
            if "drift/libdrift.a" in words:
                self.link[program] = (found.group(1), words)
        self.server = self.link.pop(SERVER, None)

    def ninja(self, *args):
        return subprocess.run(["ninja", "-C", self.folder, *args], check=True, capture_output=True, text=True).stdout

    def make(self, mutant, work):
        """Compiles and links one mutant; returns {program: path}. Raises CalledProcessError."""
        sources = sources_with(mutant) if mutant != "kNone" else []
        objects = [self.object(self.compile[os.path.realpath(s)], "-DDRIFT_MUTANT=" + mutant, work) for s in sources]
        programs = {}
        for program, (path, words) in self.link.items():
            if not objects:
                programs[program] = os.path.join(self.folder, path)
                continue
            programs[program] = self.program(words, objects, "drift/libdrift.a", os.path.join(work, program))
        return programs

    def make_server(self, work):
        """The server's test program with holes to open. Raises CalledProcessError."""
        os.makedirs(work, exist_ok=True)
        # Unity builds name the sources in a file of their own; all of them that include a source with a hole.
        holders = [path for path in self.compile if "/drift_server.dir/" in path and self.has_hole(path)]
        objects = [self.object(self.compile[path], "-DDRIFT_SERVER_MUTANTS", work) for path in holders]
        return self.program(self.server[1], objects, "server/libdrift_server.a", os.path.join(work, SERVER))

    def has_hole(self, path, deep=True):
        text = open(path, encoding="utf-8").read()
        included = re.findall(r'#include "(/[^"]+\.cpp)"', text) if deep else []
        return "DRIFT_HOLE(" in text or any(self.has_hole(other, False) for other in included)

    def object(self, command, define, work):
        words = list(command)
        target = os.path.join(work, os.path.basename(words[-1]) + ".o")
        words[words.index("-o") + 1] = target
        # "-MD -MT x -MF y" would overwrite the real build's dependency files.
        for flag in ("-MT", "-MF"):
            if flag in words:
                at = words.index(flag)
                del words[at : at + 2]
        words = [w for w in words if w not in ("-MD", "-MMD")]
        words.insert(-2, define)
        self.call(words)
        return target

    def program(self, link, objects, before, target):
        words = list(link)
        words[words.index("-o") + 1] = target
        at = words.index(before)
        words[at:at] = objects
        self.call(words)
        return target

    def call(self, words):
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True, text=True)


def first_failure(program, gtest_filter, hole=None):
    """Runs a test program until its first failure; returns the failing test's name or None."""
    command = [program, "--gtest_fail_fast", "--gtest_brief=0"]
    if gtest_filter:
        command.append("--gtest_filter=" + gtest_filter)
    environment = dict(os.environ, DRIFT_SERVER_MUTANT=hole) if hole else None
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired:
        return os.path.basename(program) + " (did not end)"
    if done.returncode == 0:
        return None
    failed = re.search(r"^\[  FAILED  \] (\S+?)(?:,| \()", done.stdout, re.M)
    if failed:
        return failed.group(1)
    started = re.findall(r"^\[ RUN      \] (\S+)", done.stdout, re.M)
    return (started[-1] if started else os.path.basename(program)) + " (aborted)"


def judge(build, mutant, base_work):
    """(unit test that failed or None, property test or None, build error or None)"""
    work = os.path.join(base_work, mutant)
    os.makedirs(work, exist_ok=True)
    try:
        if mutant != "kNone" and not sources_with(mutant):
            return None, None, "no source of the product holds Mutant::" + mutant
        try:
            programs = build.make(mutant, work)
        except subprocess.CalledProcessError as error:
            return None, None, (error.stderr or error.stdout or str(error)).strip()[-2000:]
        unit = None
        for name in UNIT:
            if name in programs and unit is None:
                unit = first_failure(programs[name], None)
        found = first_failure(programs[PROPERTY], PROPERTY_FILTER) if PROPERTY in programs else None
        return unit, found, None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def holes_of(build, chosen, base_work):
    """Yields each hole's (name, what it is, unit test that failed or None, build error or None)."""
    if not chosen:
        return
    work = os.path.join(base_work, "server")
    program, error = None, "there is no %s in this build" % SERVER if not build.server else None
    try:
        program = build.make_server(work) if build.server else None
    except subprocess.CalledProcessError as failed:
        error = (failed.stderr or failed.stdout or str(failed)).strip()[-2000:]
    for name, about in chosen:
        failures = (first_failure(program, one, name) for one in SERVER_FILTERS) if error is None else ()
        yield name, about, next((failed for failed in failures if failed), None), error
    shutil.rmtree(work, ignore_errors=True)


def write_markdown(path, lines):
    text = open(path, encoding="utf-8").read()
    mark = "<!-- mutants -->"
    if text.count(mark) != 2:
        fail(2, "%s must hold the mark %s twice" % (path, mark))
    before, _, after = text.split(mark)
    with open(path, "w", encoding="utf-8") as out:
        out.write(before + mark + "\n" + "\n".join(lines) + "\n" + mark + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="comma-separated mutants")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "mutants"))
    parser.add_argument("--no-build", action="store_true", help="the build folder is up to date")
    parser.add_argument("--no-baseline", action="store_true", help="do not run kNone first")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("-j", "--jobs", type=int, default=int(os.environ.get("DRIFT_JOBS", os.cpu_count() or 2)))
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    started = time.time()

    known, holes = enumerators(HEADER, "Mutant"), enumerators(SERVER_HEADER, "Hole")
    chosen, open_holes = known, holes
    if options.only:
        wanted = options.only.split(",")
        unknown = set(wanted) - {name for name, _ in known + holes} - {"kNone", "server"}
        if unknown:
            fail(2, "no such mutant: " + ", ".join(sorted(unknown)))
        chosen = [m for m in known if m[0] in wanted]
        open_holes = [m for m in holes if m[0] in wanted or "server" in wanted]

    if not options.no_build:
        configure = ["cmake", "-S", ROOT, "-B", options.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DDRIFT_WITH_LLAMA=OFF"]
        if subprocess.run(configure, stdout=subprocess.DEVNULL).returncode != 0:
            fail(3, "configuring %s failed" % options.build)
        listing = subprocess.run(["ninja", "-C", options.build, "-t", "targets", "all"], capture_output=True, text=True).stdout
        targets = [p for p in UNIT + [PROPERTY, SERVER] if re.search(r"\b%s: CXX_EXECUTABLE_LINKER" % p, listing)]
        if subprocess.run(["ninja", "-C", options.build, "-j", str(options.jobs), *targets], stdout=subprocess.DEVNULL).returncode != 0:
            fail(3, "building %s failed; see: ninja -C %s" % (", ".join(targets), options.build))
    build = Build(options.build)
    if PROPERTY not in build.link:
        fail(3, "there is no %s that links libdrift.a in %s" % (PROPERTY, options.build))
    print("programs: " + ", ".join(build.link) + "; %s runs with --gtest_filter=%s" % (PROPERTY, PROPERTY_FILTER), flush=True)

    work = os.path.join(options.build, "mutants-%d" % os.getpid())
    status = 0
    baseline = [] if options.no_baseline else [("kNone", "nothing: must pass")]
    rows = ["| mutant | what is wrong | unit test that fails | property test that fails |", "|---|---|---|---|"]
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        runs = [(name, about, pool.submit(judge, build, name, work)) for name, about in baseline + chosen]
        found = ((name, about, *future.result()) for name, about, future in runs)
        found_holes = ((name, about, unit, None, error) for name, about, unit, error in holes_of(build, open_holes, work))
        for name, about, unit, of_property, error in itertools.chain(found, found_holes):
            if error:
                verdict, status = "NOT BUILT: " + error, 1
            elif name == "kNone":
                verdict = "passes, as it must" if not (unit or of_property) else "FAILS: %s" % (unit or of_property)
                status = status or int(bool(unit or of_property))
            else:
                verdict = "caught by " + " and ".join(t for t in (unit, of_property) if t) if unit or of_property else "SURVIVED"
                status = status or int(not (unit or of_property))
            print("%-24s %s" % (name, verdict), flush=True)
            rows.append("| %s | %s | %s | %s |" % (name, about, unit or "-", of_property or "-"))
    shutil.rmtree(work, ignore_errors=True)
    print("%d mutants, %.0f s" % (len(chosen) + len(open_holes), time.time() - started))
    if options.markdown and status == 0:
        write_markdown(options.markdown, rows)
    sys.exit(status)


if __name__ == "__main__":
    main()
