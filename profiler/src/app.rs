//! What each subcommand does, wired from the other modules. Computes nothing itself.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{
    process::Child,
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval_at, sleep_until},
};

use crate::{
    aggregate::{GroupBy, Report, State},
    cli::{Cli, Command, Format, RecordArgs, ReportArgs, TopArgs},
    doctor, exit,
    export::{json, table},
    recording::{Recording, Writer},
    session::{Plan, Session, kernel_line, monotonic_ns},
    snapshot::{End, Meta},
    stress,
    terminal::say,
};

/// How long a command that was told to end is waited for.
const COMMAND_GRACE: Duration = Duration::from_secs(3);
/// How often our own cost is looked at.
const BUDGET_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a parsed command line; says the exit code.
///
/// # Errors
/// What the user should read; [`exit::code_of`] turns it into a code.
pub fn run(cli: Cli) -> Result<u8> {
    match cli.command {
        Command::Record(args) => block_on(record(args)),
        Command::Report(args) => report(&args),
        Command::Top(args) => block_on(top(args)),
        Command::Doctor(args) => doctor::run(&args, &mut io::stdout().lock()),
        Command::Stress(args) => stress::run(&args),
    }
}

fn block_on(future: impl Future<Output = Result<u8>>) -> Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("starting the event loop")?.block_on(future)
}

/// Ends of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Duration,
    Command,
    Signal,
}

impl Ending {
    fn in_words(self) -> &'static str {
        match self {
            Ending::Duration => "duration",
            Ending::Command => "command ended",
            Ending::Signal => "interrupted",
        }
    }
}

/// The signals that end a recording in order; a second one leaves at once.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Signals> {
        let on = |kind| signal(kind).context("installing a signal handler");
        Ok(Signals {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// From now on a further signal leaves at once, whatever is still being written.
fn leave_at_the_next_signal(mut signals: Signals, undo: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        signals.any().await;
        undo();
        std::process::exit(i32::from(exit::INTERRUPTED));
    });
}

async fn record(args: RecordArgs) -> Result<u8> {
    let interval = seconds("--interval", args.interval)?;
    let duration = args.duration.map(|secs| seconds("--duration", secs)).transpose()?;
    let plan = Plan { measure: args.measure.clone(), selection: args.measure.selection(&args.command)? };
    let mut signals = Signals::new()?;
    let mut session = Session::open(&plan)?;
    warn(&session);
    let mut writer = Writer::create(&args.output)?;
    session.start();
    writer.meta(&meta(&plan, &session))?;
    let mut child = if args.command.is_empty() { None } else { Some(spawn(&session, &plan, &args)?) };
    let ending = watch(&mut session, &mut writer, &mut child, &mut signals, interval, duration).await;
    leave_at_the_next_signal(signals, session.leaver());
    let status = finish_command(child).await;
    let ending = ending?;
    finish(session, &mut writer, ending, status)?;
    let path = args.output.display();
    let (why, bytes) = (ending.in_words(), writer.written());
    say(&format!("{why}, {bytes} bytes in {path}; read it with: lockscope report {path}"));
    Ok(exit::DONE)
}

fn warn(session: &Session) {
    for warning in &session.warnings {
        say(warning);
    }
}

fn seconds(option: &str, value: f64) -> Result<Duration> {
    if !value.is_finite() || !(0.01..=1e9).contains(&value) {
        bail!("{option} {value}: give between 0.01 and 1e9 seconds");
    }
    Ok(Duration::from_secs_f64(value))
}

fn spawn(session: &Session, plan: &Plan, args: &RecordArgs) -> Result<Child> {
    let command = session.command(plan, &args.user())?;
    let name = args.command[0].to_string_lossy().into_owned();
    session.adopt(true);
    let child = tokio::process::Command::from(command).spawn();
    session.adopt(false);
    child.with_context(|| format!("starting {name}"))
}

/// Writes a snapshot each tick until something ends the recording.
async fn watch(
    session: &mut Session,
    writer: &mut Writer,
    child: &mut Option<Child>,
    signals: &mut Signals,
    interval: Duration,
    duration: Option<Duration>,
) -> Result<Ending> {
    let start = Instant::now();
    let mut ticks = interval_at(start + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut looks = budget_ticks();
    loop {
        tokio::select! {
            () = signals.any() => return Ok(Ending::Signal),
            () = until(duration.map(|duration| start + duration)) => return Ok(Ending::Duration),
            () = ended(child) => return Ok(Ending::Command),
            _ = ticks.tick() => write_snapshot(session, writer)?,
            _ = looks.tick() => keep_budget(session)?,
        }
    }
}

/// When the budget is looked at, apart from the snapshots.
fn budget_ticks() -> tokio::time::Interval {
    let mut ticks = interval_at(Instant::now() + BUDGET_INTERVAL, BUDGET_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

fn keep_budget(session: &mut Session) -> Result<()> {
    if let Some(done) = session.keep_budget()? {
        say(&done);
    }
    Ok(())
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn ended(child: &mut Option<Child>) {
    match child {
        Some(child) => drop(child.wait().await),
        None => std::future::pending().await,
    }
}

fn write_snapshot(session: &mut Session, writer: &mut Writer) -> Result<()> {
    let (names, snapshot) = session.snapshot()?;
    if !names.is_empty() {
        writer.names(&names)?;
    }
    writer.snapshot(&snapshot)
}

/// Ends the command if it still runs: SIGTERM, and no more than that.
async fn finish_command(child: Option<Child>) -> Option<i32> {
    let mut child = child?;
    if let Ok(None) = child.try_wait()
        && let Some(pid) = child.id()
    {
        // SAFETY: the process is our own child and not yet waited for, so the number is still its.
        unsafe { libc::kill(pid as libc::pid_t, libc::SIGTERM) };
    }
    match tokio::time::timeout(COMMAND_GRACE, child.wait()).await {
        Ok(status) => status.ok().map(status_code),
        Err(_) => {
            say("the command does not end on SIGTERM and goes on without us");
            None
        }
    }
}

/// As a shell says it: the exit code, or 128 + the signal.
fn status_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn finish(mut session: Session, writer: &mut Writer, ending: Ending, status: Option<i32>) -> Result<()> {
    session.stop();
    write_snapshot(&mut session, writer)?;
    let reason = ending.in_words().to_owned();
    writer.end(&End { at_ns: monotonic_ns(), reason, command_status: status })?;
    session.close()
}

fn meta(plan: &Plan, session: &Session) -> Meta {
    let features = &session.features;
    Meta {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: features.hostname.clone(),
        kernel: kernel_line(features),
        possible_cpus: features.possible_cpus,
        online_cpus: features.online_cpus,
        started_unix_s: std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        attached_ns: session.attached_ns,
        command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        selection: plan.selection.in_words(),
        min_wait_ns: plan.measure.min_wait,
        stack_depth: plan.measure.stack_depth,
        coverage: session.coverage.clone(),
        device: plan.selection.device.as_ref().map(|(device, _)| *device),
        isolated_cpus: features.isolated_cpus.clone(),
        lru_sampling: session.lru_sampling(),
        hz: features.hz,
    }
}

fn report(args: &ReportArgs) -> Result<u8> {
    let report = read_report(&args.file)?;
    let text = match args.format {
        Format::Table => {
            table::render(&report, &table::Options { max_rows: args.rows, ..table::Options::default() })
        }
        Format::Json => serde_json::to_string_pretty(&json::render(&report))? + "\n",
    };
    print(&text)?;
    Ok(exit::DONE)
}

/// The report of a whole recording.
///
/// # Errors
/// When the file is no recording.
pub fn read_report(file: &Path) -> Result<Report> {
    let recording = Recording::open(file)?;
    let mut state = State::new(&recording.meta);
    state.learn(&recording.names);
    for snapshot in &recording.snapshots {
        state.absorb(snapshot);
    }
    let table = state.whole(GroupBy::LockModeCaller);
    Ok(Report { meta: recording.meta, table, end: recording.end, truncated: recording.truncated })
}

async fn top(args: TopArgs) -> Result<u8> {
    let interval = seconds("--interval", args.interval)?;
    let plan = Plan { measure: args.measure.clone(), selection: args.measure.selection(&[])? };
    let mut signals = Signals::new()?;
    let mut session = Session::open(&plan)?;
    warn(&session);
    session.start();
    let meta = meta(&plan, &session);
    let mut state = State::new(&meta);
    let mut ticks = interval_at(Instant::now() + interval, interval);
    let mut looks = budget_ticks();
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        tokio::select! {
            () = signals.any() => break,
            _ = looks.tick() => keep_budget(&mut session)?,
            _ = ticks.tick() => {
                let text = next_table(&mut session, &mut state, &meta, args.rows)?;
                if !print_unless(&mut signals, text).await? {
                    leave(session);
                }
                left -= 1;
            }
        }
    }
    session.close()?;
    Ok(exit::DONE)
}

/// Prints from a thread of its own, since a reader that has stopped would block us; `false` when a signal came first.
async fn print_unless(signals: &mut Signals, text: String) -> Result<bool> {
    let printing = tokio::task::spawn_blocking(move || print(&text));
    tokio::select! {
        () = signals.any() => Ok(false),
        done = printing => done.context("printing")?.map(|()| true),
    }
}

/// Ends with what was printed so far: a thread still blocked in a write cannot be waited for.
fn leave(session: Session) -> ! {
    drop(session);
    std::process::exit(i32::from(exit::DONE));
}

fn next_table(session: &mut Session, state: &mut State, meta: &Meta, rows: usize) -> Result<String> {
    let earlier = state.moment.clone();
    let (names, snapshot) = session.snapshot()?;
    state.learn(&names);
    state.absorb(&snapshot);
    let table = state.since(&earlier, GroupBy::LockModeCaller);
    let report = Report { meta: meta.clone(), table, end: None, truncated: None };
    Ok(table::render(&report, &table::Options { max_rows: rows, live: true, ..table::Options::default() }))
}

/// Writes to standard output at once; a closed pipe is the caller's end, told by the error.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
