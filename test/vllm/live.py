"""An engine that stays: one process, asked line by line. So several can be asked in turns, and be compared fairly."""
import json
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent


class Live:
    """plan: as of engine.py, without requests. refused: why it does not run, None: it does."""

    def __init__(self, name, bench, plan, env=None):
        self.name, self.folder = name, pathlib.Path(bench.folder)
        r, w = os.pipe()
        at = self.folder / f"{name}.json"
        at.write_text(json.dumps({"model": str(self.folder / "model"), "watch": False, "answers": w, **plan}))
        with open(self.folder / f"{name}.log", "w") as log:
            self.process = subprocess.Popen([bench.python, HERE / "engine.py", at], stdin=subprocess.PIPE, text=True,
                                            stdout=log, stderr=subprocess.STDOUT, pass_fds=[w],
                                            env={**bench.env(), **(env or {})})
        os.close(w)
        self.answers = os.fdopen(r)
        said = self.answers.readline()
        self.refused = json.loads(said).get("refused") if said else "the engine ended"

    def log(self):
        return (self.folder / f"{self.name}.log").read_text()

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        said = self.answers.readline()
        if not said:
            raise RuntimeError(f"{self.name} ended: {self.log()[-2000:]}")
        return json.loads(said)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.answers.close()
