"""An engine for the tests of starting: a server of a few lines that does what it is told.

python scripted_engine.py BEHAVIOUR… [--port N …]

`loading` never gets ready, `exits` prints and ends, `chatty` ends with a long line, `worker` ends
after a worker of its own failed for want of memory, `deaf` ignores SIGTERM, `family` has a child in
its process group and one outside it, both deaf. It answers its own command line.
"""

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

SLEEPS = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if "loading" in sys.argv else 200)
        self.end_headers()
        told = {"argv": sys.argv[1:], "threads": os.environ.get("OMP_NUM_THREADS")}
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *_):
        pass


def main():
    say = sys.stderr.write
    say("loading weights\r 50%\r100%\n")
    if "exits" in sys.argv:
        say("api_key: ['X'], hub hf_abcdefghijklmnopqrstuv, \x1b[31mred\x1b[0m \x07 bell\n")
        say(f"environment {os.environ.get('HF_TOKEN')}\n")
        sys.exit("no kernel image is available")
    if "chatty" in sys.argv:
        sys.exit("z" * 10_000)
    if "worker" in sys.argv:
        say("(API) WARNING 11-23 a low limit causes `OSError: [Errno 24] Too many open files`\n")
        say("(Worker) ERROR 11-23 ValueError: Available memory on node 0 is less than asked\n")
        say("  File\n" * 20)
        sys.exit("RuntimeError: see above")
    if "deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "family" in sys.argv:
        for outside in (False, True):
            subprocess.Popen([sys.executable, "-S", "-c", SLEEPS], start_new_session=outside)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
