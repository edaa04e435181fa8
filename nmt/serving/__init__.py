"""Serving: trained models behind HTTP, and a page to try them.

Refuses to know how a model was trained, and which family it is of. FastAPI and uvicorn are imported when a
server starts, by `app` and `server` alone. The modules in import order:

    configs             Limits of a server.
    counters            Counts and histograms in the text format of Prometheus.
    answers             Lines and what is asked about them in; translations, confidence and attention out.
    batcher             Requests that wait, the batches of one worker, and the thread that workers share.
    task                What a server needs of a task.
    translation         Translations for the lines of a request.
    classification      Labels for the lines of a request.
    tasks               The table of tasks that are served.
    app                 The endpoints, and the page made from page.html.
    server              A server from its start to a signal.
"""
