//! The two host processes of a virtual machine: virtiofsd, which serves the host's root folder, and QEMU. Both die
//! with this value or with us. Must not know what runs inside.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};

use super::guest::RunDir;
use super::kernels::Unpacked;
use super::{Accel, VmSpec};
use crate::exec::{self, Guarded, cannot_here};

const VIRTIOFSD: &str = "/usr/lib/qemu/virtiofsd";

/// A machine that is switched on. Dropping it switches it off.
pub struct Machine {
    qemu: Guarded,
    // After qemu: fields are dropped in order, and the file server must go last.
    _files: Guarded,
}

impl Machine {
    /// Starts both processes; their messages go to files in `run`.
    pub fn start(spec: &VmSpec, kernel: &Unpacked, run: &RunDir) -> Result<Self> {
        let socket = run.file("fs.sock");
        let files = serve_root(&socket, &run.file("virtiofsd.log"))?;
        let mut qemu = qemu(spec, kernel, run, &socket);
        log_to(&mut qemu, &run.file("qemu.log"))?;
        Ok(Self { qemu: Guarded::spawn(&mut qemu)?, _files: files })
    }

    /// How QEMU ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.qemu.ended()
    }
}

/// The listening socket is made here and inherited, so that QEMU can connect at once and nothing has to be waited for.
fn serve_root(socket: &Path, log: &Path) -> Result<Guarded> {
    if !Path::new(VIRTIOFSD).exists() {
        return Err(cannot_here(format!("no {VIRTIOFSD} (Debian 12: qemu-system-common)")));
    }
    let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
    let fd = listener.as_raw_fd();
    let mut cmd = Command::new(VIRTIOFSD);
    cmd.arg(format!("--fd={fd}")).args(["-o", "source=/", "-o", "sandbox=chroot", "-o", "cache=always"]);
    cmd.args(["-o", "no_flock", "-o", "no_posix_lock", "--thread-pool-size=4"]);
    log_to(&mut cmd, log)?;
    inherit(&mut cmd, fd);
    Guarded::spawn(&mut cmd)
}

/// Keeps `fd` open in the child.
fn inherit(cmd: &mut Command, fd: i32) {
    let hook = move || {
        // SAFETY: fcntl on a number; the descriptor is open until the parent has spawned. Async-signal-safe.
        match unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the hook runs between fork and exec and makes one system call: no allocation, no lock.
    unsafe { cmd.pre_exec(hook) };
}

fn log_to(cmd: &mut Command, log: &Path) -> Result<()> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    cmd.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    Ok(())
}

fn qemu(spec: &VmSpec, kernel: &Unpacked, run: &RunDir, socket: &Path) -> Command {
    let mut cmd = exec::system("qemu-system-x86_64");
    cmd.args(["-accel", accelerator(spec.accel), "-cpu", &spec.cpu_model]);
    cmd.args(["-smp", &spec.effective_cpus().to_string(), "-m", &spec.mem]);
    cmd.args(["-display", "none", "-monitor", "none", "-nodefaults", "-no-reboot"]);
    cmd.arg("-serial").arg(format!("file:{}", run.file("console.log").display()));
    // virtiofs needs the guest's memory shared with its daemon.
    cmd.args(["-numa", "node,memdev=mem", "-object"]);
    cmd.arg(format!("memory-backend-memfd,id=mem,size={},share=on", spec.mem));
    cmd.arg("-chardev").arg(format!("socket,id=fs,path={}", socket.display()));
    cmd.args(["-device", "vhost-user-fs-pci,queue-size=1024,chardev=fs,tag=hostroot"]);
    cmd.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(run.file("initrd"));
    if spec.accel == Accel::Icount {
        cmd.args(["-icount", "shift=0,sleep=off"]);
    }
    cmd.args(["-append", &kernel_command_line(spec)]);
    cmd
}

/// Always software emulation, even where /dev/kvm exists: runs must be alike everywhere.
fn accelerator(accel: Accel) -> &'static str {
    match accel {
        Accel::Multi => "tcg,thread=multi",
        Accel::Single | Accel::Icount => "tcg,thread=single",
    }
}

fn kernel_command_line(spec: &VmSpec) -> String {
    // panic=-1 reboots at once and -no-reboot turns that into the end of QEMU; an oops ends the run too, it must not
    // be overlooked. With the hpet clock some loads stall under emulation.
    let fixed = "console=ttyS0 quiet panic=-1 oops=panic rcupdate.rcu_cpu_stall_suppress=1 nowatchdog \
                 mitigations=off clocksource=tsc tsc=reliable";
    format!("{fixed} {}", spec.append).trim_end().to_owned()
}
