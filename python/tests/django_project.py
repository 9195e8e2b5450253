"""The Django project of 0.1.0's README: its code blocks word for word, and what a project has besides."""

from __future__ import annotations

import readme_project
from project import Project

HEADING = "Django-specific setup"

# The settings of a project that the README's come to; the server's address is filled in.
SETTINGS = """
import os
SECRET_KEY = "of the tests"
ALLOWED_HOSTS = ["testserver"]
BASE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "myapp.apps.MyAppConfig",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
ROOT_URLCONF = "myproject.urls"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DATABASES = {{
    "default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": os.path.join(BASE_DIR, "db.sqlite3")}},
    "other": {{"ENGINE": "django.db.backends.sqlite3", "NAME": os.path.join(BASE_DIR, "other.sqlite3")}},
}}
USE_TZ = True
CELERY_BROKER_URL = {broker!r}
CELERY_RESULT_BACKEND = {backend!r}
"""

URLS = """
from django.urls import path
from myapp.views import UploadView
urlpatterns = [path("upload/", UploadView.as_view())]
"""

# A task that reads what a transaction wrote.
MORE_TASKS = """

@vtrr.task
def greet(self, user_id: int):
    from django.contrib.auth.models import User
    from notes import note
    names = list(User.objects.filter(pk=user_id).values_list("username", flat=True))
    note("greet", names=names)
    return names
"""

# In front of every script.
SCRIPT = """
import myproject.celery
import django
django.setup()
from django.contrib.auth.models import User
from django.db import transaction
from myapp.tasks import greet, process_upload
from myapp.vtrr import vtrr
"""

MIGRATE = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
call_command("migrate", database="other", verbosity=0)
"""

# The app is in another package here.
COMMAND = ("-A myapp", "-A myproject")


def write(project: Project) -> None:
    """Writes the project and makes its databases."""
    readme_project.write(project, HEADING)
    settings, tasks = (project.folder / path for path in ("myproject/settings.py", "myapp/tasks.py"))
    server = project.server
    settings.write_text(SETTINGS.format(broker=server.url(0), backend=server.url(1)) + settings.read_text())
    tasks.write_text(tasks.read_text() + MORE_TASKS)
    project.write(
        {
            "myapp/__init__.py": "",
            "myproject/__init__.py": "from .celery import app as celery_app\n",
            "myproject/urls.py": URLS,
        }
    )
    project.run(SCRIPT + MIGRATE)
    # django-redis takes the database from LOCATION; the README's OPTIONS["DB"] is nothing to it, under 0.1.0 too.
    database = project.ask(SCRIPT, "vtrr.redis_client.connection_pool.connection_kwargs.get('db', 0)")
    project.store = project.server.client(database, decode_responses=True)


def start_worker(project: Project) -> None:
    """By the README's command."""
    (command,) = readme_project.commands(readme_project.WORKER)
    assert COMMAND[0] in command
    project.start(command.replace(*COMMAND))
