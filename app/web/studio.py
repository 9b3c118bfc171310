"""The entry of the web server: Streamlit's application inside guard, gate, upload limits and history steps.

`whetstone up` passes it to `python -m streamlit run`.
"""

from pathlib import Path
from threading import Thread

from starlette.middleware import Middleware
from streamlit.starlette import App

from app.web import error_page
from app.web.history_steps import HistorySteps
from app.web.origin_guard import Guard
from app.web.sign_in_gate import Gate
from app.web.upload_limits import UploadLimits
from backend.domain.maths import student_t
from backend.service.studio import sign_in
from backend.service.studio.studio import allowed_hosts, begin_log, upload_limit

begin_log()
Thread(target=student_t.quantile, args=(0.975, 4)).start()  # loads scipy while the browser comes, not in the first page

layers = [Middleware(Guard, hosts=allowed_hosts())]
configuration = sign_in.web_configuration()
if configuration is not None:
    layers.append(Middleware(Gate, sign_in=configuration[0], cookie_secret=configuration[1]["cookie_secret"]))
actor, most_bytes = upload_limit()
layers.append(Middleware(UploadLimits, actor=actor, most=most_bytes))
layers.append(Middleware(HistorySteps))
secrets = None if configuration is None else {"auth": configuration[1]}
app = App(
    Path(__file__).resolve().parents[1] / "main.py", middleware=layers, secrets=secrets, on_script_error=error_page.show
)
