"""Runs commands one after the other and watches a GPU's memory meanwhile; what was measured can be kept in a file."""
import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import threading

LOOK_SECONDS = 0.02


class Gpu:
    """NVML's view of one GPU; without NVML, none."""

    class Memory(ctypes.Structure):
        _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

    def __init__(self, which):
        self.handle, self.name = ctypes.c_void_p(), None
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.nvml = None
            return
        if which.isdigit():
            found = self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(int(which), ctypes.byref(self.handle))
        else:
            found = self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByUUID(which.encode(), ctypes.byref(self.handle))
        if found != 0:
            self.nvml = None
            return
        name = ctypes.create_string_buffer(96)
        self.nvml.nvmlDeviceGetName(self.handle, name, len(name))
        self.name = name.value.decode()
        self.start = self.used()

    def used(self):
        memory = self.Memory()
        self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory))
        return memory.used

    def watch(self, done, peak):
        """Puts the most that was in use above the start into peak[0] until done is set."""
        while self.nvml is not None:
            peak[0] = max(peak[0] or 0, self.used() - self.start)
            if done.wait(LOOK_SECONDS):
                return


class Cells:
    """Outcomes of commands, kept in a file where one is given."""

    def __init__(self, args):
        self.args, self.gpu, self.known = args, Gpu(args.gpu), {}
        self.environment = os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": args.gpu}
        if args.cells and os.path.exists(args.cells):
            with open(args.cells) as file:
                self.known = json.load(file)

    def run(self, command):
        """{"lines": JSON objects printed, "error": "" or why it failed, "gpu_bytes": most in use or None, "limit": seconds}."""
        key = shlex.join(command)
        known = self.known.get(key)
        if not known or known["error"].startswith("over ") and known["limit"] < self.args.limit:
            self.known[key] = self.measure(command)
            if self.args.cells:
                with open(self.args.cells, "w") as file:
                    json.dump(self.known, file, indent=1)
        return self.known[key]

    def measure(self, command):
        done, peak = threading.Event(), [None]
        watcher = threading.Thread(target=self.gpu.watch, args=(done, peak))
        watcher.start()
        error, out, errors = "", "", ""
        try:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment,
                                     start_new_session=True)
            try:
                out, errors = child.communicate(timeout=self.args.limit)
            except BaseException as stop:
                os.killpg(child.pid, signal.SIGKILL)
                out, errors = child.communicate()
                if not isinstance(stop, subprocess.TimeoutExpired):
                    raise
                error = f"over {self.args.limit:g} s"
            error = error or failure(child.returncode, errors)
        except OSError as problem:
            error = str(problem)
        finally:
            done.set()
            watcher.join()
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
        return {"lines": lines, "error": error, "gpu_bytes": peak[0], "limit": self.args.limit}


def failure(status, errors):
    """Why a process failed, in a line."""
    if status == 0:
        return ""
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    said, mark = errors.strip().splitlines() or [f"exit status {status}"], "headway: error: "
    ours = next((line.removeprefix(mark) for line in said if line.startswith(mark)), "")
    return ours or ("out of memory" if re.search(r"out of memory|OutOfMemory", errors) else said[-1])
