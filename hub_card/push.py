# Copyright 2026 The glassformer authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
"""A folder to a repository of the Hub, in one commit: all of it is there afterwards, or nothing has changed.

Large files are sent before the commit and kept by the Hub under their hash, so what has arrived is not sent again by the next
try, and a push that finds nothing new makes no commit. If a first push breaks off, the new repository stays, empty, for the next
try to fill: with it would go what has arrived already.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelInfo
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

import glassformer

from .card import write_card
from .facts import read_facts
from .files import WEIGHTS, Contents, contents


logger = logging.getLogger("glassformer")


class HubError(OSError):
    """A push that did not happen; the message says why and what to do."""


def describe_push(folder: Path, repo: str) -> str:
    """What `--dry-run` prints: what would go, with sizes in bytes, and what would stay, with reasons. Asks nobody."""
    check_name(repo)
    found = contents(folder)
    sizes = {name: path.stat().st_size for name, path in found.upload.items()}
    width = max(map(len, [*sizes, *found.left_out])) + 2
    lines = [f"Would be uploaded, {len(sizes)} files with {sum(sizes.values()):,} bytes; README.md is made or refreshed first:"]
    lines += [f"  {name:{width}}{size:>15,}" for name, size in sizes.items()]
    lines += ["Left out:", *(f"  {name:{width}}{why}" for name, why in found.left_out.items())]
    return "\n".join(lines)


def push(
    folder: Path,
    repo: str,
    private: bool = False,
    revision: str | None = None,
    agree: Callable[[str], bool] = lambda question: False,
) -> str:
    """Upload a model and its card -> the address of the repository. `agree` is asked before anything becomes public."""
    api = HfApi(library_name="glassformer", library_version=glassformer.__version__)
    contents(folder)  # refuses before anything is sent
    repo = full_name(api, repo)
    before = look_up(api, repo, revision)
    if before is None and not private and not agree(f"{repo} does not exist yet. Make it, for everybody to see?"):
        raise HubError(f"Nothing was pushed: pass --yes to make {repo} for everybody to see, or --private.")
    if before is not None and private and not before.private:
        raise HubError(f"{repo} is there already and public: make it private in its settings first, or drop --private.")
    write_card(folder, repo)
    found = contents(folder)
    pictures = read_facts(folder).reads_pictures
    name, file = ("image processor", "preprocessor_config.json") if pictures else ("tokenizer", "tokenizer_config.json")
    if file not in found.upload:
        logger.warning(f"{folder} has no {name}: those who load the model will have to get one elsewhere.")
    with in_a_sentence(repo, api):
        if before is None:
            api.create_repo(repo, private=private)
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
    with in_a_sentence(repo, api, is_upload=True):
        commit = api.create_commit(
            repo, operations(api, repo, revision, found), commit_message="Push from glassformer", revision=revision
        )
    unchanged = before is not None and commit.oid == before.sha
    logger.info("Nothing has changed since the last push." if unchanged else f"Pushed {len(found.upload)} files.")
    return f"{api.endpoint}/{repo}" + (f"/tree/{revision}" if revision else "")


def full_name(api: HfApi, repo: str) -> str:
    """With the user's own name before it where none is given."""
    check_name(repo)
    with in_a_sentence(repo, api):
        user = api.whoami()["name"]
    return repo if "/" in repo else f"{user}/{repo}"


def check_name(repo: str) -> None:
    try:
        validate_repo_id(repo)
    except HFValidationError:
        raise HubError(f"{repo!r} is no name of a repository: write NAME, or USER/NAME.") from None


def look_up(api: HfApi, repo: str, revision: str | None) -> ModelInfo | None:
    """What the Hub knows about a repository and its last commit; None if there is none, or none that we may see."""
    with in_a_sentence(repo, api):
        try:
            return api.model_info(repo, revision=revision)
        except RevisionNotFoundError:
            return api.model_info(repo)
        except RepositoryNotFoundError:
            return None


def operations(api: HfApi, repo: str, revision: str | None, found: Contents) -> list[CommitOperationAdd | CommitOperationDelete]:
    """Files to add, and weights of an earlier push to take away: a loader might prefer them to those that come now."""
    there = api.list_repo_files(repo, revision=revision)
    stale = [name for name in there if WEIGHTS.fullmatch(name) and name not in found.upload]
    return [
        *(CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in found.upload.items()),
        *(CommitOperationDelete(path_in_repo=name) for name in stale),
    ]


@contextlib.contextmanager
def in_a_sentence(repo: str, api: HfApi, is_upload: bool = False) -> Iterator[None]:
    """Errors of the client, told with their cause and cure."""
    try:
        yield
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        told = explain(root_of(error), repo, api.endpoint)
        if not is_upload or isinstance(error, ValueError):
            raise HubError(f"Nothing was pushed: {told}") from error
        cure = "Start the same command again: what has arrived is not sent again."
        raise HubError(f"The upload broke off and nothing was committed: {told} {cure}") from error


def root_of(error: BaseException) -> BaseException:
    """What has happened: uploads wrap it. A ValueError is about what was sent, and says more than its cause."""
    while not isinstance(error, (HTTPError, ValueError)) and error.__cause__ is not None:
        error = error.__cause__
    return error


def explain(error: BaseException, repo: str, endpoint: str) -> str:
    if isinstance(error, LocalTokenNotFoundError):
        return "you are not logged in. Run `hf auth login`, or set HF_TOKEN to a token that may write."
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set. Unset it."
    if isinstance(error, HfHubHTTPError):
        return explain_status(error, repo, endpoint)
    if isinstance(error, HTTPError):
        return f"{endpoint} cannot be reached ({error or type(error).__name__}). Check the network."
    return f"{' '.join(str(error).split()).rstrip('.')}."


def explain_status(error: HfHubHTTPError, repo: str, endpoint: str) -> str:
    status, owner = error.response.status_code, repo.partition("/")[0]
    if status == 401:
        return f"your token is not accepted. Make a new one at {endpoint}/settings/tokens, then run `hf auth login`."
    if status == 403:
        return f"your token may not write to {repo}. Choose a name of your own, or a token that may write as {owner}."
    if status in (404, 409):
        return f"the name {repo} is taken by something that you may not see or change. Choose another."
    return f"the Hub answered {status} ({error.response.headers.get('X-Error-Message') or error.response.reason_phrase})."
