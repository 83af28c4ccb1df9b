"""A news pipeline: ingest, classify, neutralize, brief, summary; evaluation and optimization if configured.

    onetray worker --app onetray.examples.news_pipeline:app     # in one terminal
    python -m onetray.examples.news_pipeline                    # in another

Kill the worker at any moment and start it again: the pipeline continues where it was. With a server, it can be started
by its name: POST /v1/pipeline/jobs {"pipeline": "news"} (docs/pipeline.md).
"""

from __future__ import annotations

import asyncio
import sys

from pydantic import BaseModel, Field

from onetray import AlreadyOpen, Onetray, PermanentError, ctx

FEEDS = {
    "harbour": ["Shock as ferry is late again", "Town votes on new bridge", "Herring prices steady"],
    "valley": ["Outrage over school roof", "Rain expected until Friday", "Choir wins stunning prize"],
}
LOUD = {"shock": "surprise", "outrage": "dispute", "stunning": "good"}
LEASE_S = 3.0
"""Short, so that the tasks of a killed worker are soon taken over."""


class NewsConfig(BaseModel, extra="forbid"):
    feeds: list[str] = Field(default_factory=lambda: sorted(FEEDS), min_length=1)
    enable_evaluation: bool = False
    enable_auto_optimize: bool = False
    pace_s: float = Field(default=0.05, ge=0)
    """The simulated time of work for one article."""


class Article(BaseModel):
    feed: str
    title: str
    topic: str = "unknown"


app = Onetray()
# Only one runs at a time, and it fails if it has not ended after two hours.
news = app.flow("news", config=NewsConfig, roll_up="mixed", singleton=True, deadline_s=7200, lease_s=LEASE_S)


@news.stage(each=lambda config: config.feeds, retries=3, timeout_s=60)
async def ingest(item: str, config: NewsConfig) -> list[Article]:
    if item not in FEEDS:
        raise PermanentError(f"there is no feed {item!r}")
    await asyncio.sleep(config.pace_s)
    return [Article(feed=item, title=title) for title in FEEDS[item]]


@news.stage
async def gather(ingest: list[list[Article]], config: NewsConfig) -> list[Article]:
    await asyncio.sleep(config.pace_s)
    return [article for feed in ingest for article in feed]


@news.stage(each=gather, on_failure="continue", retries=2)
async def classify(item: Article, config: NewsConfig) -> Article:
    await asyncio.sleep(config.pace_s)
    places = {"bridge": "politics", "school": "politics", "rain": "weather", "choir": "culture", "prices": "economy"}
    topic = next((topic for word, topic in places.items() if word in item.title.lower()), "news")
    return item.model_copy(update={"topic": topic})


@news.stage(each=classify, on_failure="continue", retries=2)
async def neutralize(item: Article, config: NewsConfig) -> Article:
    ctx.progress(0, 2, "reading")
    ctx.check_cancelled()
    await asyncio.sleep(config.pace_s)
    ctx.progress(1, 2, "rewriting")
    words = [LOUD.get(word.lower(), word) for word in item.title.split()]
    if words != item.title.split():
        ctx.log("neutralized", before=item.title)
    return item.model_copy(update={"title": " ".join(words)})


@news.stage(on_failure="continue")
async def brief(neutralize: list[Article], config: NewsConfig) -> dict[str, list[str]]:
    await asyncio.sleep(config.pace_s)
    topics: dict[str, list[str]] = {}
    for article in neutralize:
        topics.setdefault(article.topic, []).append(article.title)
    return topics


@news.stage(on_failure="continue")
async def summary(brief: dict[str, list[str]] | None, config: NewsConfig) -> str:
    await asyncio.sleep(config.pace_s)
    return "; ".join(f"{topic}: {len(titles)}" for topic, titles in sorted((brief or {}).items()))


@news.stage(when=lambda config: config.enable_evaluation, on_failure="continue")
async def evaluation(neutralize: list[Article], config: NewsConfig) -> float:
    """The share of titles without a loud word."""
    await asyncio.sleep(config.pace_s)
    plain = [a for a in neutralize if not any(word in a.title.lower() for word in LOUD)]
    return len(plain) / max(len(neutralize), 1)


@news.stage(when=lambda config, evaluation: config.enable_auto_optimize and evaluation is not None)
async def optimization(evaluation: float, config: NewsConfig) -> str:
    await asyncio.sleep(config.pace_s)
    return "nothing to improve" if evaluation == 1.0 else f"{1 - evaluation:.0%} of the titles are still loud"


if __name__ == "__main__":
    try:
        job = news.submit(NewsConfig(enable_evaluation="--evaluate" in sys.argv, pace_s=0.5))
    except AlreadyOpen as e:
        sys.exit(str(e))
    print(f"job {job.id}")
    for stage in (event for event in job.events(follow=True) if event.type.startswith("stage.")):
        print(stage.type)
    print(job.outcome()["summary"])
