"""The tables and figures of the thesis and the papers that Scanflow follows, measured again on this machine."""
