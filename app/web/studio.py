"""The web server's entry: Streamlit's application inside the guard. `whetstone up` gives it to `python -m streamlit run`."""

from pathlib import Path

from starlette.middleware import Middleware
from streamlit.starlette import App

from app.web.guard import Guard
from backend.service.studio.studio import begin_log, hosts

begin_log()

app = App(Path(__file__).resolve().parents[1] / "main.py", middleware=[Middleware(Guard, hosts=hosts())])
