// Entry point of the build: connects the handler to hostler's functions, and to the variables that the consumer grants.
import * as context from "hostler:consumer/context@0.1.0";
import * as producer from "hostler:consumer/producer@0.1.0";
import { getEnvironment } from "wasi:cli/environment@0.2.0";
import { component } from "../../sdk/js/hostler.js";
import { deliverer } from "./webhook.js";

export const { handler } = component(
  { default: deliverer(() => Object.fromEntries(getEnvironment())) },
  { ...context, ...producer },
);
