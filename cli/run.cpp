#include "cli/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "cli/bank_session.hpp"
#include "cli/console.hpp"
#include "cli/exit_codes.hpp"
#include "cli/input.hpp"
#include "cli/interruptible.hpp"
#include "cli/modes.hpp"
#include "cli/options.hpp"
#include "cli/prompts.hpp"
#include "cli/run_stream.hpp"
#include "text/utf8.hpp"

namespace drift::cli {
namespace {

using Clock = std::chrono::steady_clock;
using decode::Mode;
using Messages = std::vector<engine::ChatMessage>;

constexpr const char* kExamples =
    "Examples:\n"
    "  drift run -m target.gguf -md draft.gguf -p \"Explain photosynthesis.\" -n 200\n"
    "  drift run -m T -md D -f notes.txt --raw --temp 0 --show-draft\n"
    "  drift run -m T -md D --bank law.bank          (an interactive chat; Ctrl-C or an empty end of input keeps the bank)\n"
    "A prompt is framed by the model's chat template if the model has one (--chat insists on it, --raw continues the text as it "
    "is).\n"
    "Text goes to stdout, figures and errors to stderr. --bank loads the file if it exists and saves at the end, also after "
    "Ctrl-C;\n"
    "a second Ctrl-C ends at once, the file then holds the last saved content.\n"
    "Exit codes: 0 done; 1 failure; 2 bad input; 130 interrupted; 141 the reader of the output has gone.";

// The prompt as tokens. Fails with kInvalid, kLimit, kUnsupported.
Result<std::vector<Token>> frame(const Pair& pair, const RunOptions& options, const Messages& messages, bool chat) {
  std::string text = messages.back().content;
  if (chat) {
    DRIFT_ASSIGN(text, frame_chat(pair, messages));
  }
  DRIFT_ASSIGN(std::vector<Token> tokens, pair.text->tokenize(text, /*add_special=*/true, /*parse_special=*/chat));
  if (tokens.empty()) return Status(Code::kInvalid, "the prompt gives no tokens; it needs text");
  DRIFT_TRY(check_fits(pair, tokens.size(), options.generate, "the prompt"));
  return tokens;
}

Messages first_messages(const RunOptions& options) {
  return options.system.empty() ? Messages{} : Messages{{"system", options.system}};
}

class Runner {
 public:
  Runner(const RunOptions& options, Mode mode, Pair& pair, recal::BankSession* bank, propose::SuffixMemory* suffix)
      : options_(options),
        mode_(mode),
        pair_(pair),
        bank_(bank),
        suffix_(suffix),
        stepper_(*pair.target, pair.draft.get()),
        choices_(options.seed) {
    const bool terminal = stdout_is_terminal();
    colours_ = options.show_draft && !options.json && (options.colour == "always" || (options.colour == "auto" && terminal));
    if (options.show_draft && !colours_ && !options.json)
      note("--show-draft shows colours on a terminal only; --color always forces them");
  }

  ~Runner() { close(); }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  Result<Turn> generate(const std::vector<Token>& prompt) {
    Turn turn;
    turn.prompt_tokens = prompt.size();
    DRIFT_ASSIGN(text::StopStrings stops, text::StopStrings::make(options_.stops));
    RunStream stream(std::move(stops), colours_, [this](std::string_view text) {
      if (!options_.json) write_out(text);
    });
    if (colours_ && !legend_shown_) write_out(colour_legend());
    legend_shown_ = true;
    DRIFT_TRY(begin(prompt));
    Status status = decode(*sequence_, stream, turn);
    stream.finish();
    turn.text = stream.text();
    if (status.is_ok() && mode_ != Mode::kOff && !plain_ms_ && turn.metrics.tokens >= kEnoughTokens && !interrupted())
      status = measure_plain(*sequence_);
    turn.plain_ms = plain_ms_;
    if (!status.is_ok()) {  // a sequence that failed is of no more use
      close();
      return status;
    }
    return turn;
  }

 private:
  static constexpr std::uint64_t kEnoughTokens = 16;  // below that a speed means nothing

  // The first turn opens the sequence; a later one goes on in it, so that only what is new is prefilled.
  Status begin(const std::vector<Token>& prompt) {
    if (sequence_) return stepper_.restart(*sequence_, prompt, config(mode_, options_.generate));
    DRIFT_ASSIGN(sequence_, stepper_.open(prompt, config(mode_, options_.generate)));
    return Status::ok();
  }

  void close() {
    if (sequence_) stepper_.close(*sequence_);
    sequence_.reset();
  }

  decode::SequenceConfig config(Mode mode, std::int64_t max_tokens) {
    decode::SequenceConfig config;
    config.mode = mode;
    config.rule = mode == Mode::kOff ? spec::JudgeRule::kMatch : options_.settings.judge;
    config.sampler = options_.sampler;
    config.name = turns_;
    config.draft_tokens = options_.settings.draft_tokens;
    config.max_tokens = max_tokens;
    config.recal = bank_ != nullptr ? bank_->recal() : nullptr;
    config.copy = options_.settings.copy;
    config.suffix = suffix_;
    config.choices = &choices_;
    config.is_end = [this](Token token) { return pair_.text->is_end(token); };
    return config;
  }

  Status decode(decode::Sequence& sequence, RunStream& stream, Turn& turn) {
    const auto start = Clock::now();
    for (bool done = false; !done && !interrupted();) DRIFT_TRY(stepper_.prefill(sequence, kPrefillChunk, done));
    turn.prefill_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    decode::Sequence* const one[] = {&sequence};
    while (sequence.ending() == decode::Ending::kRunning && !interrupted() && !out_is_broken() && !stream.stopped()) {
      DRIFT_TRY(stepper_.step(one, events_));
      turn.metrics.add(events_[0]);
      show(events_[0], stream);
    }
    ++turns_;
    if (stream.stopped()) {
      turn.ending = "stop";
    } else if (interrupted()) {
      turn.ending = "interrupted";
    } else if (out_is_broken()) {
      turn.ending = "closed";
    } else {
      turn.ending = sequence.ending() == decode::Ending::kEnd      ? "end"
                    : sequence.ending() == decode::Ending::kLength ? "length"
                                                                   : "context";
    }
    return Status::ok();
  }

  // Accepted proposals, then those that did not stand, then the target's own token: the order in which they were decided.
  void show(const trace::StepEvent& event, RunStream& stream) const {
    const auto emit = [&](const trace::EmittedToken& token) {
      if (pair_.text->is_end(token.token)) return;
      const Look look = token.origin == trace::Origin::kTarget     ? Look::kTarget
                        : token.origin == trace::Origin::kAccepted ? Look::kAccepted
                                                                   : Look::kBank;
      stream.token(look, pair_.text->piece(token.token));
    };
    std::size_t next = 0;
    while (next < event.emitted.size() && event.emitted[next].origin != trace::Origin::kTarget) emit(event.emitted[next++]);
    std::string struck;
    for (const trace::ProposedToken& proposal : event.proposed) {
      if (!proposal.accepted) struck += pair_.text->piece(proposal.token);
    }
    stream.rejected(struck);
    while (next < event.emitted.size()) emit(event.emitted[next++]);
  }

  // A few plain steps after the same prompt: what a token would have cost without drafting.
  Status measure_plain(decode::Sequence& sequence) {
    constexpr int kSteps = 6;
    DRIFT_TRY(stepper_.rewind(sequence, config(Mode::kOff, kSteps)));
    decode::Sequence* const one[] = {&sequence};
    std::vector<double> times;
    while (sequence.ending() == decode::Ending::kRunning && !interrupted()) {
      DRIFT_TRY(stepper_.step(one, events_));
      times.push_back(static_cast<double>(events_[0].times.total_ns) * 1e-6);
    }
    if (times.size() < 3) return Status::ok();
    times.erase(times.begin());  // the first one pays for the change of shape
    std::sort(times.begin(), times.end());
    plain_ms_ = times[times.size() / 2];
    return Status::ok();
  }

  const RunOptions& options_;
  Mode mode_;
  Pair& pair_;
  recal::BankSession* bank_;
  propose::SuffixMemory* suffix_;
  decode::Stepper stepper_;
  std::unique_ptr<decode::Sequence> sequence_;
  RngStream choices_;
  bool colours_ = false, legend_shown_ = false;
  std::uint64_t turns_ = 0;
  std::optional<double> plain_ms_;
  std::vector<trace::StepEvent> events_;
};

int code_of_ending(const Turn& turn) { return turn.ending == "interrupted" ? kExitInterrupted : kExitOk; }

Result<int> run_once(const RunOptions& options, Mode mode, Pair& pair, recal::BankSession* bank, Runner& runner,
                     const std::vector<Token>& prompt) {
  DRIFT_ASSIGN(const Turn turn, runner.generate(prompt));
  if (options.json) {
    write_out(run_json(options, pair, mode, turn, bank != nullptr ? bank->recal()->bank().size() : 0));
  } else {
    if (!turn.text.empty() && turn.text.back() != '\n') write_out("\n");
    note(figures_line(turn, mode));
  }
  return code_of_ending(turn);
}

// Whether a line can be a message at all.
Status check_line(const LineReader::Line& line) {
  if (line.too_long) return {Code::kLimit, fmt::format("the line is longer than {} bytes", kPromptBytesMax)};
  if (const std::size_t nul = line.text.find('\0'); nul != std::string::npos)
    return {Code::kInvalid, fmt::format("byte {} of the line is NUL", nul + 1)};
  const std::size_t valid = text::valid_prefix(line.text);
  if (valid != line.text.size()) return {Code::kInvalid, fmt::format("byte {} of the line is not valid UTF-8", valid + 1)};
  return Status::ok();
}

// The conversation with the line at its end, as tokens. Fails as frame(); says so where only the conversation is too long.
Result<std::vector<Token>> frame_line(const Pair& pair, const RunOptions& options, Messages messages, bool chat) {
  auto tokens = frame(pair, options, messages, chat);
  if (tokens.is_ok() || tokens.status().code() != Code::kLimit) return tokens;
  Messages alone = first_messages(options);
  alone.push_back(messages.back());
  if (alone.size() == messages.size() || !frame(pair, options, alone, chat).is_ok()) return tokens;
  return Status(Code::kLimit, fmt::format("the conversation fills the context of {} tokens and has no room for this line and an "
                                          "answer: begin a new one, generate less (-n), or give a larger context (-c)",
                                          pair.context));
}

// Line by line until the input ends. With a chat template the whole conversation is the prompt of each turn. A line that cannot
// be sent is told and forgotten.
Result<int> run_chat(const RunOptions& options, Mode mode, const Pair& pair, Runner& runner, bool chat) {
  Messages messages = first_messages(options);
  LineReader lines(Input::standard(), kPromptBytesMax);
  if (stderr_is_terminal()) note("a line is a turn; /exit, Ctrl-D or Ctrl-C ends and keeps the bank");
  int code = kExitOk;
  while (code == kExitOk && !out_is_broken()) {
    if (stderr_is_terminal()) write_err("> ");
    auto next = lines.next();
    if (interrupted()) return kExitInterrupted;
    DRIFT_ASSIGN(const std::optional<LineReader::Line> line, std::move(next));
    if (!line || line->text == "/exit") break;
    if (line->text.empty() && !line->too_long) continue;
    const Status sound = check_line(*line);
    if (!sound.is_ok()) {
      note(sound.message() + "; the line was not sent");
      continue;
    }
    messages.push_back({"user", line->text});
    const auto tokens = frame_line(pair, options, messages, chat);
    const Code why = tokens.status().code();
    if (why == Code::kLimit || why == Code::kInvalid) {
      messages.pop_back();
      note(tokens.status().message() + "; the line was not sent");
      continue;
    }
    if (!tokens.is_ok()) return tokens.status();
    DRIFT_ASSIGN(const Turn turn, runner.generate(tokens.value()));
    write_out("\n");
    note(figures_line(turn, mode));
    messages.push_back({"assistant", turn.text});
    code = code_of_ending(turn);
  }
  return interrupted() ? kExitInterrupted : code;
}

// Everything that can be refused before a model is read.
Status check(RunOptions& options, Mode& mode) {
  DRIFT_TRY(options.sampler.validate());
  if (options.has_prompt && !options.file.empty()) return {Code::kInvalid, "-p and -f exclude each other"};
  if (options.chat && options.raw) return {Code::kInvalid, "--chat and --raw exclude each other"};
  if (options.raw && !options.system.empty()) return {Code::kInvalid, "--system needs a chat; leave --raw out"};
  if (options.colour != "auto" && options.colour != "always" && options.colour != "never") {
    return {Code::kInvalid, fmt::format("--color is '{}'; it must be auto, always or never", options.colour)};
  }
  if (!options.file.empty()) {
    DRIFT_ASSIGN(options.prompt, read_text_file(options.file, kPromptBytesMax));
    options.has_prompt = true;
  }
  const char* source = options.file.empty() ? "-p" : "-f";
  if (options.has_prompt && options.prompt.empty())
    return {Code::kInvalid, fmt::format("{}: the prompt is empty; it needs text", source)};
  for (const auto& [name, text] :
       {std::pair<const char*, const std::string*>{source, &options.prompt}, {"--system", &options.system}}) {
    if (text->size() > kPromptBytesMax)
      return {Code::kLimit, fmt::format("{} has {} bytes; at most {} are read", name, text->size(), kPromptBytesMax)};
    const std::size_t valid = text::valid_prefix(*text);
    if (valid != text->size()) return {Code::kInvalid, fmt::format("{}: byte {} is not valid UTF-8", name, valid + 1)};
  }
  if (options.json && !options.has_prompt) return {Code::kInvalid, "--json needs a prompt: give one with -p or -f"};
  mode = options.pair.draft.empty() ? Mode::kOff : Mode::kDrift;
  if (!options.mode.empty()) {
    DRIFT_ASSIGN(mode, parse_mode("--mode", options.mode));
  }
  if (decode::learns(mode))
    return {Code::kInvalid,
            "--mode online-kd trains its draft anew in every run; compare it with drift compare --modes online-kd"};
  if (decode::drafts(mode) && options.pair.draft.empty())
    return {Code::kInvalid, fmt::format("--mode {} needs a draft: give one with -md", mode_name(mode))};
  if (!decode::recalibrates(mode) && !options.bank.empty())
    return {Code::kInvalid, fmt::format("--bank belongs to --mode drift and drift+suffix; this is {}", mode_name(mode))};
  if (options.bank_read_only && options.bank.empty()) return {Code::kInvalid, "--bank-ro needs --bank FILE"};
  return text::StopStrings::make(options.stops).status();
}

Result<int> run(RunOptions options) {
  Mode mode = Mode::kOff;
  DRIFT_TRY(check(options, mode));
  DRIFT_ASSIGN(Pair pair, load_pair(options.pair));
  const bool chat = options.chat || (!options.raw && pair.text->has_chat_template());
  if (!options.system.empty() && !chat) return Status(Code::kInvalid, "--system needs a chat template, and the target has none");
  std::vector<Token> prompt;  // looked at before a bank is made for it
  if (options.has_prompt) {
    Messages messages = first_messages(options);
    messages.push_back({"user", options.prompt});
    DRIFT_ASSIGN(prompt, frame(pair, options, messages, chat));
  }
  std::optional<recal::BankSession> bank;
  if (decode::recalibrates(mode)) {
    DRIFT_ASSIGN(bank, open_bank(options.bank, options.bank_read_only, options.settings, pair));
    options.settings.recal = bank->recal()->config();  // a stored bank brings its own: print what is in use
  }
  recal::BankSession* session = bank ? &*bank : nullptr;
  std::unique_ptr<propose::SuffixMemory> suffix;  // lasts as long as the chat
  if (decode::remembers(mode)) {
    DRIFT_ASSIGN(suffix, propose::SuffixMemory::create(options.settings.suffix_tokens));
  }
  Runner runner(options, mode, pair, session, suffix.get());
  Result<int> code =
      options.has_prompt ? run_once(options, mode, pair, session, runner, prompt) : run_chat(options, mode, pair, runner, chat);
  if (bank) DRIFT_TRY(bank->save());  // also after a failure: what was learned before it is sound
  return code;
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Generate text from a prompt, or chat");
  command->footer(kExamples);
  add_pair_options(*command, options->pair);
  command
      ->add_option_function<std::string>(
          "-p,--prompt", [options](const std::string& text) { options->prompt = text, options->has_prompt = true; },
          "the prompt; without -p and -f: an interactive chat")
      ->type_name("TEXT");
  add_text(*command, "-f,--file", "FILE", "read the prompt from a file", options->file);
  add_text(*command, "--system", "TEXT", "a system message for the chat template", options->system);
  add_int(*command, "-n,--predict", -1, 1 << 20,
          "tokens to generate, 1 to 1048576; -1: until the model ends or the context is full [-1]", [options](std::int64_t v) {
            if (v == 0) throw CLI::ValidationError("-n is '0'; it must be 1 to 1048576, or -1 for no limit");
            options->generate = v;
          });
  add_text(*command, "--mode", "MODE", mode_names() + " [drift with -md, else off]", options->mode);
  command->add_option("--stop", options->stops, "end at this text, which is not shown; may be repeated")
      ->type_name("TEXT")
      ->expected(1)
      ->allow_extra_args(false)  // else "[x]" is taken for a list
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_text(*command, "--bank", "FILE", "the bank's file: loaded if it exists, saved at the end", options->bank);
  command->add_flag("--bank-ro", options->bank_read_only, "only read --bank FILE; what is learned is forgotten at the end");
  command->add_flag("--show-draft", options->show_draft, "colour tokens by origin and show rejected ones struck through");
  command->add_option("--color", options->colour, "auto, always or never [auto: on a terminal]")->type_name("WHEN");
  command->add_flag("--chat", options->chat, "insist on the chat template");
  command->add_flag("--raw", options->raw, "no chat template: continue the text");
  command->add_flag("--json", options->json, "print one JSON object (schema drift.run/1) instead of streaming");
  add_sampler_options(*command, options->sampler, options->seed);
  add_setting_options(*command, options->settings);
  command->callback([options, &exit_code] {
    const Result<int> code = run(*options);
    exit_code = code.is_ok() ? code.value() : fail(code.status());
  });
}

}  // namespace drift::cli
