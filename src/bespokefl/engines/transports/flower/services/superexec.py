"""Flower's SuperExec, which starts server apps, with signed requests. It takes the arguments of `flower-superexec`."""

from bespokefl.engines.transports.flower import adapter
from bespokefl.engines.transports.flower.security.access import Access

APP_MODULE = "bespokefl.engines.transports.flower.services.app_process"

if __name__ == "__main__":
    adapter.sign_all_requests(Access.of_process().signer())
    adapter.run_superexec(APP_MODULE)
