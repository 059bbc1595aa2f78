//! Starts the command to follow: inside its cgroup before exec, as the user who called sudo. Everything from exec on is
//! seen, since the programs are attached before.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// Whom the command runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandUser {
    /// The user who called sudo, or whoever we are without sudo.
    Caller,
    /// A named user.
    Named(String),
}

/// User and group numbers with the user's name and home.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    uid: libc::uid_t,
    gid: libc::gid_t,
    name: String,
    home: String,
}

/// The command, ready to be spawned: it enters `procs` between fork and exec.
///
/// # Errors
/// When the user is unknown.
pub fn prepare(words: &[OsString], user: &CommandUser, procs: Option<File>) -> Result<Command> {
    let Some((program, arguments)) = words.split_first() else { bail!("no command after --") };
    let identity = identity(user)?;
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(identity) = &identity {
        command.env("HOME", &identity.home).env("USER", &identity.name).env("LOGNAME", &identity.name);
    }
    // SAFETY: the closure calls system calls only; nothing is allocated, no lock is taken.
    unsafe {
        command.pre_exec(move || {
            if let Some(procs) = &procs {
                enter(procs)?;
            }
            match &identity {
                Some(identity) => become_user(identity),
                None => Ok(()),
            }
        });
    }
    Ok(command)
}

/// Writes ourselves into an open `cgroup.procs`.
fn enter(procs: &File) -> io::Result<()> {
    // SAFETY: a one-byte write from a constant.
    let written = unsafe { libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) };
    if written == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn become_user(identity: &Identity) -> io::Result<()> {
    let name = name_buffer(&identity.name);
    // SAFETY: plain system calls; the name is terminated.
    let failed = unsafe {
        libc::initgroups(name.as_ptr(), identity.gid) != 0
            || libc::setgid(identity.gid) != 0
            || libc::setuid(identity.uid) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn name_buffer(name: &str) -> [libc::c_char; 64] {
    let mut buffer = [0; 64];
    for (to, from) in buffer.iter_mut().take(63).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    buffer
}

/// Whom to become; `None` to stay who we are.
fn identity(user: &CommandUser) -> Result<Option<Identity>> {
    let name = match user {
        CommandUser::Named(name) => name.clone(),
        CommandUser::Caller => match std::env::var("SUDO_USER") {
            Ok(name) => name,
            Err(_) => return Ok(None),
        },
    };
    // SAFETY: reads our own effective user.
    if name == "root" && unsafe { libc::geteuid() } == 0 {
        return Ok(None);
    }
    let passwd = std::fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
    let identity = parse_passwd(&passwd, &name).or_else(|| match user {
        CommandUser::Caller => from_sudo(&name),
        CommandUser::Named(_) => None,
    });
    identity.map(Some).with_context(|| match user {
        CommandUser::Named(_) => format!("--cmd-user {name}: no such user in /etc/passwd"),
        CommandUser::Caller => {
            format!("sudo's user {name} is neither in /etc/passwd nor in SUDO_UID: use --cmd-user")
        }
    })
}

/// The caller of sudo by its numbers: users of a directory service are not in /etc/passwd.
fn from_sudo(name: &str) -> Option<Identity> {
    let number = |variable: &str| std::env::var(variable).ok()?.parse().ok();
    let home = std::env::var("SUDO_HOME").unwrap_or_else(|_| "/".to_owned());
    Some(Identity { uid: number("SUDO_UID")?, gid: number("SUDO_GID")?, name: name.to_owned(), home })
}

fn parse_passwd(passwd: &str, name: &str) -> Option<Identity> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let fields: Vec<&str> = line.split(':').collect();
    let (uid, gid) = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
    Some(Identity { uid, gid, name: name.to_owned(), home: (*fields.get(5)?).to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_read_from_passwd() {
        let text =
            "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
        let identity = parse_passwd(text, "nobody").unwrap();
        assert_eq!((identity.uid, identity.gid, identity.home.as_str()), (65534, 65534, "/nonexistent"));
        assert_eq!(parse_passwd(text, "nobod"), None);
    }

    #[test]
    fn an_empty_command_is_refused() {
        assert!(prepare(&[], &CommandUser::Caller, None).is_err());
    }
}
