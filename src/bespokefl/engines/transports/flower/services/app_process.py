"""The process of a server app, with signed requests. The SuperExec starts it; the app's token is on standard input."""

from bespokefl.engines.transports.flower import adapter
from bespokefl.engines.transports.flower.security.access import Access

if __name__ == "__main__":
    adapter.sign_all_requests(Access.of_process().signer())
    adapter.run_server_app()
