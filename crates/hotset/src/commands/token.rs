//! `hotset token …`: access to the HTTP interface.

use std::path::Path;

use clap::Subcommand;
use messages::{Answer, Request, Role};

use super::daemon::{send_request, unexpected};
use terminal::render::style::Style;
use terminal::render::table::{Side, Table};
use terminal::{Failure, print_json};

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// Create a token and print it once; only its hash is stored
    Create {
        /// Its name
        name: String,
        /// Its role: read; operate (flush, pause, freeze, resume, settings), or administer
        #[arg(long, default_value = "read")]
        role: Role,
    },
    /// List the tokens, without their secrets
    List,
    /// Revoke a token and end its sessions
    Revoke {
        /// Its name
        name: String,
    },
    /// Create a login link for a browser; it is valid once and for 15 minutes
    Link {
        /// Its role: read, operate or administer
        #[arg(long, default_value = "administer")]
        role: Role,
    },
}

/// Sends the request and prints the answer.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    let request = match action {
        Action::Create { name, role } => Request::TokenCreate { name, role },
        Action::List => Request::TokenList {},
        Action::Revoke { name } => Request::TokenRevoke { name },
        Action::Link { role } => Request::TokenLink { role },
    };
    match send_request(socket, &request)? {
        Answer::TokenCreated(created) if json => print_json(&created),
        Answer::Tokens(tokens) if json => print_json(&tokens),
        Answer::Link(link) if json => print_json(&link),
        Answer::Said(said) if json => print_json(&said),
        // Nothing but the token is printed, so that a script can use it.
        Answer::TokenCreated(created) => {
            println!("{}", created.token);
            Ok(())
        }
        Answer::Link(link) => {
            println!("{}", link.link);
            Ok(())
        }
        Answer::Tokens(tokens) => {
            let mut table = Table::new(&[("token", Side::Left), ("role", Side::Left)]);
            tokens.iter().for_each(|token| table.row(vec![token.name.clone(), token.role.to_string()]));
            print!("{}", table.render(Style::of_stdout()));
            Ok(())
        }
        Answer::Said(said) => {
            said.iter().for_each(|line| println!("{line}"));
            Ok(())
        }
        _ => Err(unexpected()),
    }
}
