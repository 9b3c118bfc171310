"""The web server's entry: Streamlit's application inside guard and gate. `whetstone up` gives it to `python -m streamlit run`."""

from pathlib import Path

from starlette.middleware import Middleware
from streamlit.starlette import App

from app.web.gate import Gate
from app.web.guard import Guard
from backend.service.studio import sign_in
from backend.service.studio.studio import begin_log, hosts

begin_log()

layers = [Middleware(Guard, hosts=hosts())]
asked = sign_in.for_web()
if asked is not None:
    layers.append(Middleware(Gate, sign_in=asked[0], cookie_secret=asked[1]["cookie_secret"]))
secrets = None if asked is None else {"auth": asked[1]}
app = App(Path(__file__).resolve().parents[1] / "main.py", middleware=layers, secrets=secrets)
