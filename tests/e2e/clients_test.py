"""Other clients than openai (serve_test.py), as they are, against one running server: LangChain's and LiteLLM's.

Each whole, in a stream, and asynchronously. Where a package is not there, its tests are skipped, aloud.
"""

import asyncio
import os
import sys
import unittest

import program
from program import ProgramTest
from serve_test import Server

sys.path.insert(0, os.path.join(os.environ.get("DRIFT_DEPS") or os.path.join(program.ROOT, ".deps"), "more-clients"))
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no list of prices from the network
try:
    import langchain_openai
except ImportError:
    langchain_openai = None
try:
    import litellm

    litellm.suppress_debug_info = True
except ImportError:
    litellm = None

NOT_THERE = "{} is not there; ./dev test installs it (tools/more-clients-requirements.txt)"
QUESTION = "What does the contract say?"


class Clients(ProgramTest):
    @classmethod
    def setUpClass(cls):
        target, draft = program.pair()
        framed = os.path.join(cls.enterClassContext(program.temporary_folder()), "framed.gguf")
        program.add_chat_template(target, framed)
        cls.server = Server("-m", framed, "-md", draft, "-t", "1", "-c", "1024", "-a", "toy", "--api-key", "secret")
        cls.addClassCleanup(cls.server.close)
        cls.server.wait_for("ready")
        cls.url = f"http://127.0.0.1:{cls.server.port}/v1"
        body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 24}
        answer = cls.server.json("POST", "/v1/chat/completions", body, headers={"Authorization": "Bearer secret"})
        cls.text, cls.usage = answer["choices"][0]["message"]["content"], answer["usage"]

    @unittest.skipIf(langchain_openai is None, NOT_THERE.format("langchain-openai"))
    def test_langchain(self):
        chat = langchain_openai.ChatOpenAI(base_url=self.url, api_key="secret", model="toy", temperature=0, max_tokens=24, max_retries=0)
        whole = chat.invoke(QUESTION)
        self.assertEqual(whole.content, self.text)
        self.assertEqual(whole.usage_metadata["output_tokens"], self.usage["completion_tokens"])
        self.assertEqual(whole.usage_metadata["input_tokens"], self.usage["prompt_tokens"])
        self.assertIn(whole.response_metadata["finish_reason"], ("stop", "length"))
        chunks = list(chat.stream(QUESTION, stream_usage=True))
        self.assertGreater(len(chunks), 2)
        self.assertEqual("".join(c.content for c in chunks), self.text)
        self.assertEqual(sum(c.usage_metadata["output_tokens"] for c in chunks if c.usage_metadata), self.usage["completion_tokens"])
        logprobs = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]
        self.assertEqual(len(logprobs), self.usage["completion_tokens"])
        self.assertEqual([m.content for m in chat.batch([QUESTION] * 3)], [self.text] * 3)

        async def ask():
            streamed = [c.content async for c in chat.astream(QUESTION)]
            return (await chat.ainvoke(QUESTION)).content, "".join(streamed)

        self.assertEqual(asyncio.run(ask()), (self.text, self.text))
        legacy = langchain_openai.OpenAI(base_url=self.url, api_key="secret", model="toy", temperature=0, max_tokens=8, max_retries=0)
        text = legacy.invoke("The court held")
        self.assertTrue(text)
        self.assertEqual("".join(legacy.stream("The court held")), text)
        wrong = langchain_openai.ChatOpenAI(base_url=self.url, api_key="wrong", model="toy", max_retries=0)
        with self.assertRaisesRegex(Exception, "401"):
            wrong.invoke(QUESTION)

    @unittest.skipIf(litellm is None, NOT_THERE.format("litellm"))
    def test_litellm(self):
        how = {"model": "openai/toy", "api_base": self.url, "api_key": "secret", "temperature": 0, "max_tokens": 24, "num_retries": 0,
               "messages": [{"role": "user", "content": QUESTION}]}
        whole = litellm.completion(**how)
        self.assertEqual(whole.choices[0].message.content, self.text)
        self.assertEqual(whole.usage.completion_tokens, self.usage["completion_tokens"])
        chunks = list(litellm.completion(stream=True, stream_options={"include_usage": True}, **how))
        self.assertGreater(len(chunks), 2)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), self.text)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason],
                         [whole.choices[0].finish_reason])
        # What is no OpenAI field goes through, as for vLLM.
        off = litellm.completion(extra_body={"drift": {"mode": "off"}}, **how)
        self.assertEqual(off.choices[0].message.content, self.text)

        async def ask():
            answer = await litellm.acompletion(**how)
            streamed = [c.choices[0].delta.content or "" async for c in await litellm.acompletion(stream=True, **how) if c.choices]
            return answer.choices[0].message.content, "".join(streamed)

        self.assertEqual(asyncio.run(ask()), (self.text, self.text))
        legacy = litellm.text_completion(model="text-completion-openai/toy", prompt="The court held", api_base=self.url, api_key="secret",
                                         temperature=0, max_tokens=8)
        self.assertEqual(legacy.usage.completion_tokens, 8)
        with self.assertRaises(litellm.AuthenticationError):
            litellm.completion(**{**how, "api_key": "wrong"})
        with self.assertRaises(litellm.BadRequestError) as caught:
            litellm.completion(**{**how, "temperature": -1})
        self.assertIn("temperature", str(caught.exception))


if __name__ == "__main__":
    program.main()
