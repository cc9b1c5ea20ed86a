// What is built: the guest, wired to hostler's functions.
import * as context from "hostler:consumer/context@0.1.0";
import * as jobs from "hostler:consumer/jobs@0.1.0";
import * as producer from "hostler:consumer/producer@0.1.0";
import * as app from "./conformance.js";
import { component } from "./hostler.js";

export const { handler, messageStart, messageEnd } = component(app, { ...context, ...jobs, ...producer });
