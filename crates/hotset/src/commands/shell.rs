//! `hotset completions` and `hotset man`: generated from the definition of the command line.

use std::path::Path;

use clap::Command;
use clap_complete::Shell;

use terminal::Failure;

/// Prints the completions for `shell`.
pub fn completions(mut command: Command, shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "hotset", &mut text);
    print!("{}", String::from_utf8_lossy(&text));
    Ok(())
}

/// Prints the manual: the page of the command and the pages of its subcommands, one after the other. With `folder` it
/// writes a file for each page into that directory instead, which is created if it is missing.
pub fn manual(mut command: Command, folder: Option<&Path>) -> Result<(), Failure> {
    if let Some(folder) = folder {
        let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
        return written.map_err(|error| {
            Failure::failed(format!("the manual cannot be written to {}: {error}", folder.display()))
        });
    }
    command.build();
    let mut text = Vec::new();
    render_pages(&command, &mut text).map_err(|error| Failure::failed(error.to_string()))?;
    print!("{}", String::from_utf8_lossy(&text));
    Ok(())
}

/// Appends the pages of a command and its subcommands.
fn render_pages(command: &Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(text)?;
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    subcommands.into_iter().try_for_each(|sub| render_pages(sub, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_creates_its_folder() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let out = folder.path().join("share/man1");
        let command = Command::new("hotset").subcommand(Command::new("status"));
        manual(command, Some(&out)).map_err(|failure| failure.message).expect("the folder is created");
        assert!(out.join("hotset.1").exists() && out.join("hotset-status.1").exists());
    }
}
