"""What happens to uploads before they are aggregated.

screening  rejects uploads that the server cannot use
clipping   bounds uploads and adds noise to them before they leave a client
shares     limits the share of one client in means
"""
