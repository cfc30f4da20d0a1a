"""Runs a file of CPython's own tests in each run."""
import importlib.abc
import importlib.util
import sys
import unittest


class Given(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Modules of the package `test`, whose texts come as params."""

    def __init__(self, texts):
        self.texts = texts

    def find_spec(self, name, path=None, target=None):
        if name in self.texts:
            return importlib.util.spec_from_loader(name, self)

    def is_package(self, name):
        return any(other.startswith(f"{name}.") for other in self.texts)

    def get_source(self, name):
        return self.texts[name]

    def get_code(self, name):
        return compile(self.texts[name], f"/test/{name.replace('.', '/')}.py", "exec", dont_inherit=True)

    def exec_module(self, module):
        module.__file__ = f"/test/{module.__name__.replace('.', '/')}.py"
        exec(self.get_code(module.__name__), module.__dict__)


class Told(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.passed = 0
        self.wrong = []

    def startTest(self, test):
        super().startTest(test)
        # If it ends the run, this is what tells which it was.
        sys.stdout.write(f"begins {test.id()}\n")

    def addSuccess(self, test):
        self.passed += 1

    def addFailure(self, test, error):
        self.wrong.append((test.id(), f"{error[0].__name__}: {error[1]}"[:300]))

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error is not None and not (self.wrong and self.wrong[-1][0] == test.id()):
            self.addFailure(test, error)

    def addUnexpectedSuccess(self, test):
        self.wrong.append((test.id(), "an unexpected success"))


def run(params, ctx):
    sys.meta_path.insert(0, Given(params["texts"]))
    try:
        # A package would look for its modules on the disk.
        inner = sorted(name for name in params["texts"] if name.startswith(f"{params['test']}.test_"))
        suite = unittest.defaultTestLoader.loadTestsFromNames(inner or [params["test"]])
    except unittest.SkipTest as why:
        return {"passed": 0, "skipped": 0, "wrong": [], "whole": f"skipped: {why}"}
    except BaseException as why:
        return {"passed": 0, "skipped": 0, "wrong": [], "whole": f"{type(why).__name__}: {why}"}
    told = Told()
    ended = set(params["ended"])
    for part in parts(suite):
        part._tests = [test for test in part if test.id() not in ended]
        part(told)
    return {"passed": told.passed, "skipped": len(told.skipped), "wrong": told.wrong, "whole": None}


def parts(suite):
    """The suites of classes, so that what a class sets up is set up once."""
    for one in suite:
        if any(isinstance(inner, unittest.TestSuite) for inner in one):
            yield from parts(one)
        else:
            yield one
