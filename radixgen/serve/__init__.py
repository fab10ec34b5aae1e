"""The HTTP front: OpenAI's, Anthropic's and SGLang's APIs over one runtime. Knows no runtime code.

gate ─▶ route ─▶ schema ─▶ sampling + constraint + conversation ─▶ Job ─▶ supervisor's client
"""
